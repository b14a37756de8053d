"""`pilotage db`: the schema of the database, and recovery from lost commits."""

from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from pilotage.cli import engine as cli_engine
from pilotage.cli import home_directory, output, settings
from pilotage.cli.errors import REFUSED, CommandRefused
from pilotage.cli.settings import Settings
from pilotage.service.auth import keys
from requirements.errors import format_count
from taskqueue.db import clock, database, incarnation, log_partitions
from taskqueue.db.database import SchemaState
from taskqueue.db.incarnation import RecoveryResult
from taskqueue.db.log_partitions import NotPartitioned


@settings.command_with("database_url", "database_direct_url", "first_job_id")
def upgrade(chosen: Settings, *, as_json: bool) -> None:
    """Create the tables and the signing key, or upgrade the tables to this release.

    Example: `pilotage db upgrade`.
    """
    home_directory.make_home(chosen.home)
    keys.load_or_create(chosen.key)
    is_new = cli_engine.upgrade_schema(
        chosen.direct_url, first_job_id=chosen.first_job_id, report=partial(typer.echo, err=True)
    )
    _report(chosen, as_json=as_json, is_new=is_new)


@settings.command_with("database_url")
def check(chosen: Settings, *, as_json: bool) -> None:
    """Check whether the tables fit this release; exit status 1 if not.

    Example: `pilotage db check`.
    """
    if not _report(chosen, as_json=as_json):
        raise typer.Exit(REFUSED)


@settings.command_with("database_url", "database_direct_url")
def recover(
    chosen: Settings,
    *,
    as_json: bool,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="S", help="Seconds in which pilots can report their open attempts."),
    ] = incarnation.PATIENCE.total_seconds(),
) -> None:
    """Recover after lost commits: a restored backup, or a promoted replica that was behind.

    Starts a new incarnation. Open attempts stay as they are until their pilots report. Identifiers that the
    lost commits may have used are skipped: job ids, attempts, watermarks, versions.

    Example: `pilotage db recover`.
    """
    with cli_engine.open_engine(chosen.direct_url) as engine:
        if not database.schema_state(engine).is_current:
            raise CommandRefused("the tables are of another release: run `pilotage db upgrade` first")
        with database.writing(engine) as conn:
            now = clock.read_time(conn, clock.utc_now())
            done = incarnation.recover(conn, now=now, patience=timedelta(seconds=wait))
        if chosen.home.is_dir():
            cli_engine.LastSeen(engine, chosen).look(now)
    times = {
        "until": done.until.isoformat(),
        "last_commit": done.last_commit and done.last_commit.isoformat(),
    }
    output.emit(asdict(done) | times, as_json=as_json, render=lambda: _recovery_lines(done))


@settings.command_with("database_url", "database_direct_url")
def partition(chosen: Settings, *, as_json: bool) -> None:
    """Put the job log into partitions: old ones are dropped, instead of their rows deleted; PostgreSQL only.

    Services, agents and pilots go on meanwhile. The table becomes the first partition, without a copy. The
    command may be ended at any time, and repeated. It is worth it from some ten million jobs on; there is no
    way back.

    Example: `pilotage db partition`.
    """
    with cli_engine.open_engine(chosen.direct_url, pool_size=1) as engine:
        if not database.schema_state(engine).is_current:
            raise CommandRefused("the tables are of another release: run `pilotage db upgrade` first")
        try:
            layout = log_partitions.convert(engine)
        except NotPartitioned as error:
            raise CommandRefused(str(error)) from None
    data = {"partitions": len(layout.partitions), "ahead": layout.ahead}
    output.emit(data, as_json=as_json, render=lambda: f"job log: {layout.describe()}")


def _recovery_lines(done: RecoveryResult) -> str:
    last = done.last_commit.isoformat(timespec="seconds") if done.last_commit else "unknown"
    open_ones = format_count(done.quarantined, "open attempt is", "open attempts are")
    return (
        f"incarnation {done.incarnation}; last commit that survived: {last}\n"
        f"{open_ones} left alone until their pilots report; those that never began "
        f"are given up after {done.until.isoformat(timespec='seconds')}\n"
        f"{done.left_out} ids of each kind are left out; configuration: version {done.config_version}"
    )


def _report(chosen: Settings, *, as_json: bool, is_new: bool = False) -> bool:
    with cli_engine.open_engine(chosen.database_url) as engine:
        state = database.schema_state(engine)
        with database.reading(engine) as conn:
            layout = log_partitions.read_layout(conn)
    url = cli_engine.hide_password(chosen.database_url)
    message = "was created" if is_new and state.is_current else _schema_message(state)
    data = {
        "database": url,
        "revision": state.current,
        "wanted": state.head,
        "current": state.is_current,
        "log_partitions": len(layout.partitions),
    }
    line = f"{url}: revision {state.current or 'none'}, {message}"
    if layout:
        line += f"; job log {layout.describe()}"
    output.emit(data, as_json=as_json, render=lambda: line)
    return state.is_current or state.is_newer


def _schema_message(state: SchemaState) -> str:
    if state.is_newer:
        return f"made by a later release than this one, which has {state.head} and goes on with it"
    return "is up to date" if state.is_current else "needs `pilotage db upgrade`"
