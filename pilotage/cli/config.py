"""`pilotage config`: look at, change, import and export the configuration."""

import typer

from pilotage.cli import (
    config_check,
    config_dirac,
    config_edit,
    config_export,
    config_factory,
    config_import,
    config_preview,
    config_show,
    config_versions,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="The configuration: resource tree, operations options, registry.")
    commands.command("check")(config_check.check)
    commands.command("show")(config_show.show)
    commands.command("set")(config_edit.set_)
    commands.command("diff")(config_versions.diff)
    commands.command("preview")(config_preview.preview)
    commands.command("apply")(config_edit.apply)
    commands.command("history")(config_versions.history)
    commands.command("rollback")(config_versions.rollback)
    imports = typer.Typer(help="Bring descriptions of other systems into the tree.")
    imports.command("classad")(config_import.classad)
    imports.command("dirac")(config_dirac.dirac)
    imports.command("osg")(config_factory.osg)
    commands.add_typer(imports, name="import")
    exports = typer.Typer(help="Say the tree in the words of other systems.")
    exports.command("classad")(config_export.classad)
    exports.command("dirac")(config_dirac.export_dirac)
    commands.add_typer(exports, name="export")
    app.add_typer(commands, name="config")
