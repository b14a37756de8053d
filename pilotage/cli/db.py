"""`pilotage db`: the schema of the database."""

import typer

from pilotage.cli import databases, home_directory, options, output, settings
from pilotage.cli.failures import REFUSED
from pilotage.cli.settings import Settings
from pilotage.service import keys
from taskqueue import database
from taskqueue.database import SchemaState


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="The database: make or renew its tables, see whether they are right.")
    commands.command("upgrade")(upgrade)
    commands.command("check")(check)
    app.add_typer(commands, name="db")


def upgrade(
    *,
    database_url: options.DatabaseUrl = None,
    database_direct_url: options.DatabaseDirectUrl = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Make the tables and the signing key, or bring the tables to what this release needs."""
    flags = {"home": home, "database_url": database_url, "database_direct_url": database_direct_url}
    chosen = settings.load(flags)
    home_directory.make(chosen.home)
    keys.load_or_create(chosen.key)
    databases.upgrade(chosen.direct_url)
    _report(chosen, as_json=as_json)


def check(
    *, database_url: options.DatabaseUrl = None, as_json: options.AsJson = False, home: options.Home = None
) -> None:
    """Say whether the tables are what this release needs; status 1 if not."""
    chosen = settings.load({"home": home, "database_url": database_url})
    if not _report(chosen, as_json=as_json):
        raise typer.Exit(REFUSED)


def _report(chosen: Settings, *, as_json: bool) -> bool:
    with databases.opened(chosen.database_url) as engine:
        state = database.schema_state(engine)
    url = databases.shown(chosen.database_url)
    said = _said(state)
    data = {"database": url, "revision": state.current, "wanted": state.head, "current": state.is_current}
    line = f"{url}: revision {state.current or 'none'}, {said}"
    output.emit(data, as_json=as_json, render=lambda: output.escape(line))
    return state.is_current or state.is_newer


def _said(state: SchemaState) -> str:
    if state.is_newer:
        return f"made by a later release than this one, which knows {state.head} and goes on with it"
    return "is up to date" if state.is_current else "needs `pilotage db upgrade`"
