"""Checks of the database: durability, limits of waiting, schema, history, configuration and agents."""

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection, Engine, text

from agents import loop, scope_counters
from cs_config.errors import ConfigError
from cs_config.versions import reverts, store
from matcher.limits import compiled_rules
from pilotage.cli import engine as cli_engine
from pilotage.cli import last_seen
from pilotage.cli.checks.finding import Finding, Health
from pilotage.cli.errors import one_line
from pilotage.cli.settings import Settings
from requirements.errors import PilotageError
from taskqueue.db import agent_leases, clock, database, postgresql
from taskqueue.db.database import SchemaState
from taskqueue.sites import processes, rule_counters

#: The oldest supported PostgreSQL.
_POSTGRESQL = 130000
#: Settings that must be on, and the consequence if they are off.
_DURABLE = {
    "fsync": "the whole database is lost when the power goes",
    "full_page_writes": "pages are torn when the power goes, and stay so",
    "synchronous_commit": "jobs that were accepted are lost when the server dies",
}


def check_database(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Check connection, settings, schema, history and configuration of the database, and its agents."""
    subject = "database"
    try:
        with cli_engine.open_engine(settings.database_url, pool_size=1) as engine:
            yield from _check_settings(engine)
            yield _clock(engine)
            yield from _check_direct_url(engine, settings)
            yield Finding(subject, Health.GOOD, cli_engine.hide_password(settings.database_url))
            state = database.schema_state(engine)
            yield _schema(state)
            if not (state.is_current or state.is_newer):
                return
            yield _history(engine, settings)
            yield _configuration(engine)
            yield _agents(engine, now)
            yield from _reverts(engine)
            yield _counters(engine)
            yield from _site_processes(engine, now)
    except PilotageError as error:
        yield Finding(subject, Health.BAD, one_line(str(error)))


def _check_settings(engine: Engine) -> Iterator[Finding]:
    with database.reading(engine) as conn:
        if engine.dialect.name == "sqlite":
            mode = conn.execute(text("PRAGMA journal_mode")).scalar_one()
            if mode != "wal":
                message = f"journal mode {mode} instead of wal: is the file on a network file system?"
                yield Finding("database", Health.BAD, message)
            return
        number = int(_show_setting(conn, "server_version_num"))
        if number < _POSTGRESQL:
            message = f"PostgreSQL {number // 10000} is too old, 13 is the oldest that will do"
            yield Finding("database", Health.BAD, message)
        for name, loss in _DURABLE.items():
            if _show_setting(conn, name) == "off":
                yield Finding(name, Health.BAD, f"{name} is off: {loss}; set it to on")
        yield from _limits(conn)


def _limits(conn: Connection) -> Iterator[Finding]:
    """Check the limits of waiting: our connections set them, those of a pooler need them from the role."""
    for name, value in postgresql.LIMITS.items():
        if _show_setting(conn, name) == "0":
            role = conn.execute(text("SELECT quote_ident(current_user)")).scalar_one()
            message = f"0: what is stuck holds up others for ever; ALTER ROLE {role} SET {name} = '{value}'"
            yield Finding(name, Health.WARNING, message)


def _check_direct_url(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Check the direct connection to the server, if there is a pooler."""
    with database.reading(engine) as conn:
        if not postgresql.is_pooled(conn):
            return
    if settings.database_direct_url is None:
        message = "no direct connection beside the pooler: matchers poll for changes; set database_direct_url"
        yield Finding("direct way", Health.WARNING, message)
        return
    try:
        yield _direct(settings.database_direct_url)
    except PilotageError as error:
        yield Finding("direct way", Health.BAD, one_line(str(error)))


def _direct(url: str) -> Finding:
    with cli_engine.open_engine(url, pool_size=1) as engine, database.reading(engine) as conn:
        pooled = postgresql.is_pooled(conn)
    shown = cli_engine.hide_password(url)
    if pooled:
        message = f"database_direct_url leads through a pooler as well: {shown}"
        return Finding("direct way", Health.BAD, message)
    return Finding("direct way", Health.GOOD, f"{shown}, around the pooler")


def _show_setting(conn: Connection, name: str) -> str:
    return str(conn.execute(text(f"SHOW {name}")).scalar_one())


def _schema(state: SchemaState) -> Finding:
    if state.is_newer:
        message = f"revision {state.current} of a later release; this one knows {state.head}: upgrade it soon"
        return Finding("schema", Health.WARNING, message)
    if not state.is_current:
        message = f"revision {state.current or 'none'}, wanted {state.head}: `pilotage db upgrade`"
        return Finding("schema", Health.BAD, message)
    return Finding("schema", Health.GOOD, f"revision {state.head}")


def _history(engine: Engine, settings: Settings) -> Finding:
    """Check for lost commits."""
    standing, problem = last_seen.compare(engine, settings)
    if problem is not None:
        return Finding("history", Health.BAD, problem)
    message = f"unbroken as far as it was seen from here (incarnation {standing.incarnation})"
    return Finding("history", Health.GOOD, message)


def _configuration(engine: Engine) -> Finding:
    with database.reading(engine) as conn:
        version = store.current_version(conn)
        if version == 0:
            message = "none yet: `pilotage up --resources FILE` or `pilotage config apply FILE`"
            return Finding("configuration", Health.WARNING, message)
        try:
            config = store.load_version(conn, version)
        except ConfigError as error:
            message = f"version {version} cannot be read: {one_line(str(error))}"
            return Finding("configuration", Health.BAD, message)
    message = f"version {version}, {len(config.addresses)} queues"
    return Finding("configuration", Health.GOOD, message)


def _reverts(engine: Engine) -> Iterator[Finding]:
    """Check that temporary changes of the configuration end."""
    with database.reading(engine) as conn:
        found = reverts.list_reverts(conn)
    for each in found:
        if each.problem:
            message = f"{each.path} of version {each.version} cannot be restored: {one_line(each.problem)}"
            yield Finding("temporary changes", Health.WARNING, message)
    if found and not any(each.problem for each in found):
        message = f"values that will be restored: {len(found)}; `pilotage config temporary` lists them"
        yield Finding("temporary changes", Health.GOOD, message)


def _counters(engine: Engine) -> Finding:
    """Compare the counters of limits with what runs."""
    with database.reading(engine) as conn:
        found = rule_counters.list_differences(conn, compiled_rules.counts)
        mended = rule_counters.count_mended(conn)
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        message = f"{scope_counters.describe(found[0])}{more}; the agent {scope_counters.NAME} mends it"
        return Finding("counters", Health.BAD, message)
    message = "limits count what runs" + (f"; {mended} counters were mended so far" if mended else "")
    return Finding("counters", Health.WARNING if mended else Health.GOOD, message)


def _site_processes(engine: Engine, now: datetime) -> Iterator[Finding]:
    """Check that directors and gateways still report, and that their slots have room for the jobs."""
    subject = "directors and gateways"
    with database.reading(engine) as conn:
        found = processes.list_processes(conn)
        now = clock.read_time(conn, now)
    late = [each for each in found if each.is_overdue(now)]
    for each in late:
        hours = (now - each.seen_at).total_seconds() / 3600
        message = f"the {each.kind} {each.name} ({each.holder}) last reported for {each.vo} {hours:.1f} h ago"
        yield Finding(subject, Health.WARNING, message)
    for each in found:
        for slot in each.too_small if each not in late else ():
            message = (
                f"{slot.jobs} jobs of {each.vo} fit {slot.queue}, but not the slots of the director "
                f"{each.name}: {slot.slot}"
            )
            yield Finding(subject, Health.WARNING, message)
    if found and not late:
        yield Finding(subject, Health.GOOD, f"{len({(each.kind, each.name) for each in found})} at work")


def _clock(engine: Engine) -> Finding:
    """Compare the clock of this host with the database's."""
    with database.reading(engine) as conn:
        here = clock.utc_now()
        offset = here - clock.read_time(conn, here)
    if problem := clock.describe_offset(offset):
        return Finding("clock", Health.BAD, f"{problem}; until then this host hands out no jobs")
    seconds = abs(offset.total_seconds())
    return Finding("clock", Health.GOOD, f"differs from the database's by {seconds:.1f} s")


def _agents(engine: Engine, now: datetime) -> Finding:
    """Check that every agent runs (one added by a release is easily forgotten), and for all VOs."""
    with database.reading(engine) as conn:
        latest = agent_leases.list_last_cycles(conn)
        broken = agent_leases.list_broken(conn)
        now = clock.read_time(conn, now)
    if missing := loop.list_overdue(latest, now=now):
        message = f"nobody runs {', '.join(missing)} now: `pilotage agent all`, or `pilotage up`, does"
        return Finding("agents", Health.WARNING, message)
    if failed := [f"{name} for {', '.join(vos)}" for name, vos in broken.items() if vos]:
        return Finding("agents", Health.WARNING, f"failed: {'; '.join(failed)}; their log shows why")
    return Finding("agents", Health.GOOD, f"at work: {', '.join(loop.INTERVALS)}")
