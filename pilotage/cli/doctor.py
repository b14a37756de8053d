"""`pilotage doctor`: checks of an installation, one function for each question; none changes anything.

Without them, an expired certificate is noticed when clients fail, and a wrong issuer shows only as a 401.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from importlib import metadata, util
from pathlib import Path

import typer
from sqlalchemy import Connection, Engine, text

from cs_config.errors import ConfigError
from cs_config.versions import store
from pilotage import entry_points, extensions
from pilotage.cli import engine as cli_engine
from pilotage.cli import home_lock, output, wiring
from pilotage.cli.errors import REFUSED, explain_missing, one_line
from pilotage.cli.processes import tls
from pilotage.cli.settings import InvalidSettings, Settings, command_with
from pilotage.client.connection import CLIENT_ENV
from pilotage.client.home import SETTINGS_FILE
from pilotage.entry_points import BrokenPlugin
from pilotage.extensions import Plugin
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.oidc.discovery import IssuerAway, IssuerKeys, Published
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.oidc.issuers import LEEWAY
from pilotage.service.problems import certificates, checks, core
from pilotage.service.problems.finding import CheckScope, Finding, Health
from pilotage.service.services import utc_now
from requirements.errors import PilotageError
from taskqueue.blob_stores.directory import check_space
from taskqueue.blob_stores.place import S3Place
from taskqueue.blob_stores.store import probe
from taskqueue.db import clock, database, missing_indexes, postgresql, redis_servers, replica
from taskqueue.db.database import SchemaState
from taskqueue.jobs.optimizer_queue import OptimizerQueueState

#: The oldest supported PostgreSQL.
_POSTGRESQL = 130000
#: Settings that must be on, and the consequence if they are off.
_DURABLE = {
    "fsync": "the whole database is lost when the power goes",
    "full_page_writes": "pages are torn when the power goes, and stay so",
    "synchronous_commit": "jobs that were accepted are lost when the server dies",
}

#: Settings that sessions behind a pooler need, values that will do, and the effect of others.
_SHARED = {
    "jit": (("off",), "a claim may take a second, to compile its statement"),
    "TimeZone": (("UTC", "Etc/UTC", "GMT", "Etc/GMT"), "some answers have times of this zone"),
}


def check_database(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Check connection, settings, schema, history and configuration of the database, and its agents."""
    subject = "database"
    try:
        with cli_engine.open_engine(settings.database_url, pool_size=1) as engine:
            yield from _check_settings(engine)
            yield _clock(engine)
            yield from _check_direct_url(engine, settings)
            yield from _check_replica(engine, settings, now)
            yield Finding(subject, Health.GOOD, cli_engine.hide_password(settings.database_url))
            state = database.schema_state(engine)
            yield _schema(engine, state)
            if not (state.is_current or state.is_newer):
                return
            yield _history(engine, settings)
            with database.reading(engine) as conn:
                yield from checks.find(conn, _scope_of(conn, now), with_seldom=True)
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
    """Check what our connections set, and those of a pooler need from the role."""
    for name, value in postgresql.LIMITS.items():
        if _show_setting(conn, name) == "0":
            alter = f"ALTER ROLE {_quote_role(conn)} SET {name} = '{value}'"
            message = f"0: what is stuck holds up others for ever; {alter}"
            yield Finding(name, Health.WARNING, message)
    compiles = conn.execute(text("SELECT pg_jit_available()")).scalar_one()  # false if it is off, too
    for name, (good, effect) in _SHARED.items():
        if (compiles or name != "jit") and (seen := _show_setting(conn, name)) not in good:
            alter = f"ALTER ROLE {_quote_role(conn)} SET {name} = '{good[0]}'"
            yield Finding(name, Health.WARNING, f"{seen}: {effect}; {alter}")


def _quote_role(conn: Connection) -> str:
    return str(conn.execute(text("SELECT quote_ident(current_user)")).scalar_one())


def _check_direct_url(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Check the direct connection to the server, if there is a pooler."""
    with database.reading(engine) as conn:
        if not postgresql.is_pooled(conn):
            return
    if settings.database_direct_url is None:
        message = "no direct connection beside the pooler: matchers poll for changes; set database_direct_url"
        yield Finding("direct database URL", Health.WARNING, message)
        return
    try:
        yield _direct(settings.database_direct_url)
    except PilotageError as error:
        yield Finding("direct database URL", Health.BAD, one_line(str(error)))


def _check_replica(primary: Engine, settings: Settings, now: datetime) -> Iterator[Finding]:
    """Check that the configured replica is good enough to be read."""
    if settings.database_replica_url is None:
        return
    subject, url = "replica", settings.database_replica_url
    with database.reading(primary) as conn:
        now = clock.read_time(conn, now)
    try:
        with cli_engine.open_engine(url, pool_size=1) as engine:
            late = replica.measure_lateness(engine, now)
    except PilotageError as error:
        yield core.describe_unused_replica(one_line(str(error)))
        return
    if late > replica.MOST_LATE:
        yield core.describe_unused_replica(f"{cli_engine.hide_password(url)} is late, or no service runs")
        return
    yield Finding(subject, Health.GOOD, f"{cli_engine.hide_password(url)}, at most {late:.0f} s late")


def _direct(url: str) -> Finding:
    with cli_engine.open_engine(url, pool_size=1) as engine, database.reading(engine) as conn:
        pooled = postgresql.is_pooled(conn)
    shown = cli_engine.hide_password(url)
    if pooled:
        message = f"database_direct_url leads through a pooler as well: {shown}"
        return Finding("direct database URL", Health.BAD, message)
    return Finding("direct database URL", Health.GOOD, f"{shown}, around the pooler")


def _show_setting(conn: Connection, name: str) -> str:
    return str(conn.execute(text(f"SHOW {name}")).scalar_one())


def _schema(engine: Engine, state: SchemaState) -> Finding:
    if state.is_newer:
        message = f"revision {state.current} of a later release; this one has {state.head}: upgrade it soon"
        return Finding("schema", Health.WARNING, message)
    if not state.is_current:
        message = f"revision {state.current or 'none'}, wanted {state.head}: `pilotage db upgrade`"
        return Finding("schema", Health.BAD, message)
    with database.reading(engine) as conn:
        missing = ", ".join(str(each.name) for each in missing_indexes.find_missing(conn))
    if missing:
        message = f"revision {state.head} without {missing}: `pilotage db upgrade` builds it, or does so now"
        return Finding("schema", Health.WARNING, message)
    return Finding("schema", Health.GOOD, f"revision {state.head}")


def _history(engine: Engine, settings: Settings) -> Finding:
    """Check for lost commits."""
    state, problem = cli_engine.compare(engine, settings)
    if problem is not None:
        return Finding("history", Health.BAD, problem)
    message = f"unbroken as far as it was seen from here (incarnation {state.incarnation})"
    return Finding("history", Health.GOOD, message)


def _scope_of(conn: Connection, now: datetime) -> CheckScope:
    """What the checks of the service look at, without one; Redis and archives are checked from here."""
    config, fault = store.NOTHING, None
    try:
        config = store.load_version(conn) if store.current_version(conn) else store.NOTHING
    except ConfigError as error:
        fault = f"the newest version cannot be read: {error}"
    operator = Caller(role=Role.OPERATOR, subject="doctor")
    now = clock.read_time(conn, now)
    return CheckScope(caller=operator, config=config, now=now, configuration_fault=fault)


def _clock(engine: Engine) -> Finding:
    """Compare the clock of this host with the database's."""
    with database.reading(engine) as conn:
        here = clock.utc_now()
        offset = here - clock.read_time(conn, here)
    if problem := clock.describe_offset(offset):
        return Finding("clock", Health.BAD, f"{problem}; until then this host hands out no jobs")
    seconds = abs(offset.total_seconds())
    return Finding("clock", Health.GOOD, f"differs from the database's by {seconds:.1f} s")


def check_certificate(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Check that the certificate, if there is one, fits its key and does not expire soon."""
    if settings.tls_certificate is None:
        return
    try:
        tls.read_certificate(settings)
    except InvalidSettings as error:
        yield Finding("certificate", Health.BAD, one_line(str(error)))
        return
    yield certificates.check_file(settings.tls_certificate, now)


#: Endpoints for signing in.
_SIGN_IN = ("authorization_endpoint", "token_endpoint")


def check_issuers(settings: Settings, clock: Callable[[], datetime]) -> Iterator[Finding]:
    """Check that each issuer answers, has usable keys and sign-in endpoints, and agrees on the time."""
    try:
        trusted = [each.issuer for each in wiring.trusted_issuers(settings.issuers)]
    except InvalidSettings as error:
        yield Finding("issuers", Health.BAD, one_line(str(error)))
        return
    for issuer in trusted:
        health, message = _check_issuer(issuer, clock)
        yield Finding(f"issuer {issuer.name}", health, message)


def _check_issuer(issuer: Issuer, clock: Callable[[], datetime]) -> tuple[Health, str]:
    try:
        published = discovery.fetch(issuer)
        if issuer.sign_in is not None:
            for name in _SIGN_IN:
                discovery.endpoint(issuer, published.endpoints, name)
        ahead = discovery.clock(issuer) - clock()
    except IssuerAway as error:
        return Health.BAD, one_line(str(error))
    if not (keys := _good_keys(published)):
        return Health.BAD, "none of the keys that it publishes is one that tokens may be signed with"
    if abs(ahead) > LEEWAY:
        seconds = abs(ahead).total_seconds()
        which = "ahead of" if ahead > LEEWAY else "behind"
        most = LEEWAY.total_seconds()
        return (
            Health.BAD,
            f"its clock is {seconds:.0f} s {which} ours, {most:.0f} s are borne: set the clocks",
        )
    return Health.GOOD, f"{issuer.url} answers, keys: {keys}"


def _good_keys(published: Published) -> int:
    keys = IssuerKeys(lambda: published)
    keys.refresh(now=0)
    return len(keys)


#: Our top-level packages; other distributions may use the same names.
PACKAGES = ("requirements", "cs_config", "taskqueue", "matcher", "optimizers", "agents", "pilotage")
#: Timeout in seconds for Redis.
_PATIENCE = 3


def check_installation(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Run all checks."""
    if running := home_lock.read_running(settings.home):
        names = ", ".join(running)
        yield Finding("settings", Health.GOOD, f"as `pilotage up` runs here, unless given: {names}")
    yield from check_packages()
    yield from check_plugins()
    yield from check_files(settings)
    yield from check_database(settings, now)
    yield from check_redis(settings)
    yield from check_certificate(settings, now)
    yield from check_issuers(settings, utc_now)


def check_packages() -> Iterator[Finding]:
    """Check that our packages are not hidden by others: `agents` and `matcher` are common names."""
    home = _location("pilotage")
    for name in PACKAGES:
        place = _location(name)
        owners = set(metadata.packages_distributions().get(name, ())) - {"pilotage"}
        if owners:
            others = ", ".join(sorted(owners))
            message = f"is also in the distribution {others}: install pilotage in an environment of its own"
            yield Finding(f"package {name}", Health.BAD, message)
        elif place != home:
            message = f"is loaded from {place}, pilotage from {home}: something hides ours"
            yield Finding(f"package {name}", Health.BAD, message)
    yield Finding("packages", Health.GOOD, f"pilotage {metadata.version('pilotage')} from {home}")


def check_plugins() -> Iterator[Finding]:
    """List the plug-ins that were left out of this installation, and those that cannot be loaded."""
    loaded = []
    for point in (point for group in entry_points.GROUPS for point in entry_points.list_all(group)):
        subject = f"plug-in {point.name}"
        if entry_points.is_absent(point):
            message = f"left out of this installation: {point.group} names {point.module}, which is absent"
            yield Finding(subject, Health.WARNING, message)
            continue
        try:
            entry_points.load(point, Plugin if point.group == extensions.GROUP else object)
        except BrokenPlugin as error:
            yield Finding(subject, Health.BAD, one_line(str(error)))
        else:
            loaded.append(point.name)
    yield Finding("plug-ins", Health.GOOD, f"loaded: {', '.join(dict.fromkeys(loaded))}")


def _location(package: str) -> str:
    spec = util.find_spec(package)
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else "nowhere"


def check_files(settings: Settings) -> Iterator[Finding]:
    """Check that secrets are private to their owner, and that directories exist."""
    if not settings.home.is_dir():
        message = f"{settings.home} does not exist yet; `pilotage up` and `pilotage db upgrade` make it"
        yield Finding("home", Health.WARNING, message)
        return
    mine = [settings.key, settings.home / CLIENT_ENV]
    urls = filter(
        None,
        (settings.database_url, settings.direct_url, settings.database_replica_url, settings.redis_url),
    )
    if any(map(cli_engine.may_have_password, urls)):
        mine.append(settings.home / SETTINGS_FILE)  # the URL with the password may be set there
    for path in mine:
        if path.exists():
            yield _check_secret(path, forbidden_bits=0o077)
    for path in settings.foreign_secrets:
        yield from _check_foreign(path)
    yield _check_blobs("blobs", settings.blobs)
    if settings.other_blobs is not None:
        yield _check_blobs("other blobs", settings.other_blobs)
    for name, place in (("home", settings.home), ("blobs", settings.blobs)):
        if isinstance(place, Path) and _is_open(place):
            message = f"others on this host may read what jobs bring and leave there: chmod 700 {place}"
            yield Finding(name, Health.WARNING, message)


def _check_blobs(name: str, place: Path | S3Place) -> Finding:
    """Check that archives can be stored."""
    if isinstance(place, S3Place):
        return _probe_bucket(name, place)
    if not place.is_dir():
        return Finding(name, Health.WARNING, f"{place} does not exist yet; the service makes it")
    try:
        check_space(place)
    except PilotageError as error:
        return Finding(name, Health.BAD, f"{error}: {place}", core.STORAGE_REMEDY)
    if not os.access(place, os.W_OK):
        return Finding(name, Health.BAD, f"cannot be written by the user of this command: {place}")
    return Finding(name, Health.GOOD, f"can be written, and have space: {place}")


def _probe_bucket(name: str, place: S3Place) -> Finding:
    """Put, list, read and delete an object of a few bytes."""
    try:
        probe(wiring.open_place(place))
    except ModuleNotFoundError as error:
        return Finding(name, Health.BAD, str(explain_missing(error)))
    except PilotageError as error:
        return Finding(name, Health.BAD, f"{error}: {place}")
    return Finding(name, Health.GOOD, f"can be put, listed, read and deleted: {place}")


def _is_open(place: Path) -> bool:
    """Whether all users can reach the directory."""
    return place.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (place, *place.parents))


def _check_foreign(path: Path) -> Iterator[Finding]:
    try:
        if path.exists():
            yield _check_secret(path, forbidden_bits=0o007)  # a group may own it
    except OSError as error:
        yield Finding(path.name, Health.BAD, f"cannot be read: {error.strerror}: {path}")


def _check_secret(path: Path, *, forbidden_bits: int) -> Finding:
    """Check the mode of a secret; `forbidden_bits`: bits that must not be set."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & forbidden_bits:
        message = f"others may read it (mode {mode:o}): chmod {mode & ~forbidden_bits:o} {path}"
        return Finding(path.name, Health.BAD, message)
    return Finding(path.name, Health.GOOD, f"mode {mode:o}")


def check_redis(settings: Settings) -> Iterator[Finding]:
    """Check that Redis answers, if it is configured."""
    if settings.redis_url is None:
        yield Finding(
            "redis", Health.GOOD, "none is set (redis_url); without one the optimizers run inside the service"
        )
        return
    try:
        from optimizers.workers import rq
    except ModuleNotFoundError as error:
        yield Finding("redis", Health.BAD, str(explain_missing(error)))
        return
    try:
        with redis_servers.connect(settings.redis_url, timeout=_PATIENCE) as client:
            state = rq.read_state(client)
    except ValueError as error:
        state = OptimizerQueueState(problem=str(error))
    yield from core.describe_optimizers(state)


def _describe(found: Finding) -> str:
    return f"{found.message}: {found.remedy}" if found.remedy else found.message


@command_with("database_url", "redis_url")
def doctor(chosen: Settings, *, as_json: bool) -> None:
    """Check this installation and list problems; exit status 1 if there are any. Changes nothing.

    Example: `pilotage doctor`.
    """
    found = list(check_installation(chosen, utc_now()))
    data = {"home": str(chosen.home), "findings": [asdict(each) for each in found]}
    rows = ((each.subject, each.health, one_line(_describe(each))) for each in found)
    output.emit(data, as_json=as_json, render=lambda: output.table(("Check", "", "Result"), rows))
    if any(each.health is Health.BAD for each in found):
        raise typer.Exit(REFUSED)
