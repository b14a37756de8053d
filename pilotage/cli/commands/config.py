"""`pilotage config`: the subcommands that show, change, import and export the configuration."""

import typer

from pilotage.cli.commands import config_change, config_formats, config_import, config_show


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="Check, show, change, import and export the configuration.")
    commands.command("check")(config_show.check)
    commands.command("show")(config_show.show)
    commands.command("set")(config_change.set_)
    commands.command("diff")(config_show.diff)
    commands.command("preview")(config_change.preview)
    commands.command("apply")(config_change.apply)
    commands.command("history")(config_show.history)
    commands.command("rollback")(config_show.rollback)
    imports = typer.Typer(help="Import configurations of other systems.")
    imports.command("classad")(config_import.import_classad)
    imports.command("dirac")(config_formats.import_dirac)
    imports.command("osg")(config_formats.import_osg)
    commands.add_typer(imports, name="import")
    exports = typer.Typer(help="Export the configuration to formats of other systems.")
    exports.command("classad")(config_formats.export_classad)
    exports.command("dirac")(config_formats.export_dirac)
    commands.add_typer(exports, name="export")
    app.add_typer(commands, name="config")
