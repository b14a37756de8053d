"""`pilotage doctor`: checks of an installation, one function for each question; none changes anything.

Without them, an expired certificate is noticed when clients fail, and a wrong issuer shows only as a 401.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path

import typer
from cryptography import x509
from sqlalchemy import Connection, Engine, text

from agents import leader, scope_counters
from cs_config.editing import reverts
from cs_config.errors import ConfigError
from cs_config.versions import store
from matcher.limits import compiled_rules
from pilotage import entry_points, extensions
from pilotage.cli import engine as cli_engine
from pilotage.cli import output, wiring
from pilotage.cli.errors import REFUSED, explain_missing, one_line
from pilotage.cli.processes import tls
from pilotage.cli.settings import InvalidSettings, Settings, command_with
from pilotage.client.connection import CLIENT_ENV
from pilotage.client.home import SETTINGS_FILE
from pilotage.entry_points import BrokenPlugin
from pilotage.extensions import Plugin
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.oidc.discovery import IssuerAway, IssuerKeys, Published
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.oidc.issuers import LEEWAY
from pilotage.service.services import utc_now
from requirements import canonical
from requirements.errors import PilotageError, format_count
from requirements.record import Record
from requirements.values import MAX_TEXT, find_excess
from taskqueue.blob_stores.directory import check_space
from taskqueue.blob_stores.place import S3Place
from taskqueue.blob_stores.store import probe
from taskqueue.db import agent_leases, clock, database, postgresql, redis_servers
from taskqueue.db.database import SchemaState
from taskqueue.jobs.optimizer_queue import OptimizerQueueState
from taskqueue.pilots import nodes
from taskqueue.pools import pools
from taskqueue.sites import processes, rule_counters


class Health(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    WARNING = "warning"  #: works, but not as it should
    BAD = "bad"  #: does not work, or is dangerous


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    health: Health
    message: str


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
            yield from _pools(engine)
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


def _schema(state: SchemaState) -> Finding:
    if state.is_newer:
        message = f"revision {state.current} of a later release; this one has {state.head}: upgrade it soon"
        return Finding("schema", Health.WARNING, message)
    if not state.is_current:
        message = f"revision {state.current or 'none'}, wanted {state.head}: `pilotage db upgrade`"
        return Finding("schema", Health.BAD, message)
    return Finding("schema", Health.GOOD, f"revision {state.head}")


def _history(engine: Engine, settings: Settings) -> Finding:
    """Check for lost commits."""
    state, problem = cli_engine.compare(engine, settings)
    if problem is not None:
        return Finding("history", Health.BAD, problem)
    message = f"unbroken as far as it was seen from here (incarnation {state.incarnation})"
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
    message = f"version {version}, {format_count(len(config.addresses), 'queue')}"
    if not config.warnings:
        return Finding("configuration", Health.GOOD, message)
    number = format_count(len(config.warnings), "probable mistake")
    shown = f"{message}, {number}, such as {one_line(str(config.warnings[0]))}"
    return Finding("configuration", Health.WARNING, f"{shown}; `pilotage config check` lists those of a file")


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
    if mended:
        counters = format_count(mended, "counter was", "counters were")
        return Finding("counters", Health.WARNING, f"limits count what runs; {counters} mended so far")
    return Finding("counters", Health.GOOD, "limits count what runs")


def _pools(engine: Engine) -> Iterator[Finding]:
    """Look for required values that were stored before they had bounds: no queue fulfils them."""
    with database.reading(engine) as conn:
        stored = pools.list_long_requirements(conn, characters=MAX_TEXT)
    problems = [
        f"of pool {pool_id[:12]}, {name} {excess}: its jobs are eligible nowhere"
        for pool_id, original in stored
        if isinstance(required := canonical.from_json(original), Record)
        for name, value in required.values
        if (excess := find_excess(value))
    ]
    yield from _warn_first("requirements", problems, "further values that are too long")


#: Problems of the same kind that are shown.
_MOST_PROBLEMS = 20


def _site_processes(engine: Engine, now: datetime) -> Iterator[Finding]:
    """Check that directors and gateways report, no problems among it, and have slots for the jobs."""
    subject = "directors and gateways"
    with database.reading(engine) as conn:
        found = processes.list_processes(conn)
        now = clock.read_time(conn, now)
        excluded = nodes.list_excluded(conn, now=now)
    late = [each for each in found if each.is_overdue(now)]
    for each in late:
        hours = (now - each.seen_at).total_seconds() / 3600
        message = f"the {each.kind} {each.name} ({each.holder}) last reported for {each.vo} {hours:.1f} h ago"
        yield Finding(subject, Health.WARNING, message)
    for each in found:
        for slot in each.too_small if each not in late else ():
            message = (
                f"{format_count(slot.jobs, f'job of {each.vo} fits', f'jobs of {each.vo} fit')} "
                f"{slot.queue}, but not the slots of the director "
                f"{each.name}: {slot.slot}"
            )
            yield Finding(subject, Health.WARNING, message)
    reports = [each for each in found if each not in late]
    problems = dict.fromkeys(
        f"the {each.kind} {each.name} reports: {problem}" for each in reports for problem in each.problems
    )
    yield from _warn_first(subject, list(problems), "further problems: see `pilotage site processes`")
    yield from _warn_first(
        subject,
        [
            f"the director {each.name} sends no pilots of {each.vo} to {state.queue} until "
            f"{state.paused_until:%H:%M} UTC: most of the last ones failed, or got no job: {state.reason}"
            for each in reports
            for state in each.list_paused(now)
        ],
        "further queues are paused: see `pilotage site processes`",
    )
    yield from _warn_first(
        subject,
        [
            f"the node {each.node} of {each.site} takes no jobs of {each.vo} until {each.until:%H:%M} UTC: "
            f"{each.reason} (`pilotage site nodes {each.site}`)"
            for each in excluded
        ],
        "further nodes are excluded: see `pilotage site nodes`",
    )
    if found and not late:
        yield Finding(subject, Health.GOOD, f"{len({(each.kind, each.name) for each in found})} at work")


def _warn_first(subject: str, messages: Sequence[str], further: str) -> Iterator[Finding]:
    for message in messages[:_MOST_PROBLEMS]:
        yield Finding(subject, Health.WARNING, one_line(message))
    if (more := len(messages) - _MOST_PROBLEMS) > 0:
        yield Finding(subject, Health.WARNING, f"{more} {further}")


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
    expected = extensions.list_intervals(leader.INTERVALS, with_optional=False)
    if missing := leader.list_overdue(latest, expected, now=now):
        message = f"nobody runs {', '.join(missing)} now: `pilotage agent all`, or `pilotage up`, does"
        return Finding("agents", Health.WARNING, message)
    if failed := [f"{name} for {', '.join(vos)}" for name, vos in broken.items() if vos]:
        return Finding("agents", Health.WARNING, f"failed: {'; '.join(failed)}; their log shows why")
    known = extensions.list_intervals(leader.INTERVALS, with_optional=True)
    silent = leader.list_overdue(latest, known, now=now)
    at_work = [name for name in known if name not in silent]
    return Finding("agents", Health.GOOD, f"at work: {', '.join(at_work)}")


_SUBJECT = "certificate"
#: A certificate that expires this soon should have been renewed.
_SOON = timedelta(days=14)


def check_certificate(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Check that the certificate, if there is one, fits its key and does not expire soon."""
    if settings.tls_certificate is None:
        return
    try:
        tls.read_certificate(settings)
        chain = x509.load_pem_x509_certificates(settings.tls_certificate.read_bytes())
    except (InvalidSettings, ValueError) as error:
        yield Finding(_SUBJECT, Health.BAD, one_line(str(error)))
        return
    health, message = _time_left(chain, now)
    yield Finding(_SUBJECT, health, message)


def _time_left(chain: list[x509.Certificate], now: datetime) -> tuple[Health, str]:
    """The first expiry in the chain: a client rejects the chain without any one of them."""
    since = max(each.not_valid_before_utc for each in chain)
    ends = min(chain, key=lambda each: each.not_valid_after_utc)
    until, name = ends.not_valid_after_utc, ends.subject.rfc4514_string()
    if now < since:
        return Health.BAD, f"is not good before {since.isoformat()}: compare the clocks"
    if now >= until:
        return Health.BAD, f"{name} is over since {until.isoformat()}: nobody connects any more; renew it"
    if until - now < _SOON:
        left = format_count((until - now).days, "day")
        return Health.WARNING, f"{name} is over in {left}, {until.isoformat()}: renew it"
    return Health.GOOD, f"good until {until.isoformat()}"


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
    urls = filter(None, (settings.database_url, settings.direct_url, settings.redis_url))
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
        return Finding(name, Health.BAD, f"{error}: {place}")
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
    if state.problem is not None:
        message = f"does not answer; jobs wait for the sweep: {one_line(state.problem)}"
        yield Finding("redis", Health.BAD, message)
        return
    yield Finding("redis", Health.GOOD, "answers")
    yield _check_workers(state)


def _check_workers(state: OptimizerQueueState) -> Finding:
    """Check that workers listen and that no batch failed."""
    waiting = format_count(state.waiting, "batch of jobs waits", "batches of jobs wait")
    numbers = f"{waiting}, {state.failed} failed in the last hour"
    if not state.is_heard:
        message = f"no worker listens: {numbers}, jobs wait for the sweep; run `pilotage worker`"
        return Finding("workers", Health.WARNING, message)
    health = Health.WARNING if state.failed else Health.GOOD
    return Finding("workers", health, f"{state.workers} listen; {numbers}")


@command_with("database_url", "redis_url")
def doctor(chosen: Settings, *, as_json: bool) -> None:
    """Check this installation and list problems; exit status 1 if there are any. Changes nothing."""
    found = list(check_installation(chosen, utc_now()))
    data = {"home": str(chosen.home), "findings": [asdict(each) for each in found]}
    rows = ((each.subject, each.health, each.message) for each in found)
    output.emit(data, as_json=as_json, render=lambda: output.table(("Check", "", "Result"), rows))
    if any(each.health is Health.BAD for each in found):
        raise typer.Exit(REFUSED)
