"""`pilotage config`: look at, change, import and export the configuration."""

import typer

from pilotage.cli.commands import config_change, config_formats, config_import, config_show


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="The configuration: resource tree, operations options, registry.")
    commands.command("check")(config_show.check)
    commands.command("show")(config_show.show)
    commands.command("set")(config_change.set_)
    commands.command("diff")(config_show.diff)
    commands.command("preview")(config_change.preview)
    commands.command("apply")(config_change.apply)
    commands.command("history")(config_show.history)
    commands.command("rollback")(config_show.rollback)
    imports = typer.Typer(help="Bring descriptions of other systems into the tree.")
    imports.command("classad")(config_import.import_classad)
    imports.command("dirac")(config_formats.import_dirac)
    imports.command("osg")(config_formats.import_osg)
    commands.add_typer(imports, name="import")
    exports = typer.Typer(help="Say the tree in the words of other systems.")
    exports.command("classad")(config_formats.export_classad)
    exports.command("dirac")(config_formats.export_dirac)
    commands.add_typer(exports, name="export")
    app.add_typer(commands, name="config")
