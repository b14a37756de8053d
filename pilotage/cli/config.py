"""`pilotage config`: check, show and store the configuration."""

import typer

from pilotage.cli import config_check, config_show, config_versions


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="The configuration: resource tree, operations options, registry.")
    commands.command("check")(config_check.check)
    commands.command("show")(config_show.show)
    commands.command("apply")(config_versions.apply)
    commands.command("history")(config_versions.history)
    app.add_typer(commands, name="config")
