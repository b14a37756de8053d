"""`pilotage doctor`: print the findings of all checks."""

from dataclasses import asdict

import typer

from pilotage.cli import output, settings
from pilotage.cli.checks import installation
from pilotage.cli.checks.finding import Health
from pilotage.cli.errors import REFUSED
from pilotage.cli.settings import Settings
from pilotage.service.services import utc_now

_SIGNS = {Health.GOOD: "[green]good[/]", Health.WARNING: "[yellow]warning[/]", Health.BAD: "[red]bad[/]"}


@settings.command_with("database_url", "redis_url")
def doctor(chosen: Settings, *, as_json: bool) -> None:
    """Check this installation and list problems; exit status 1 if there are any. Changes nothing."""
    found = list(installation.check_installation(chosen, utc_now()))
    data = {"home": str(chosen.home), "findings": [asdict(each) for each in found]}
    table = output.table(("Check", "", "Result"), ())
    for each in found:
        table.add_row(each.subject, _SIGNS[each.health], output.escape(each.message))
    output.emit(data, as_json=as_json, render=lambda: table)
    if any(each.health is Health.BAD for each in found):
        raise typer.Exit(REFUSED)
