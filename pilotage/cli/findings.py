"""What may be wrong with an installation: one function for each question, none changes anything."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Engine, text

from cs_config import versions
from cs_config.errors import ConfigError
from pilotage.cli import client_env, databases
from pilotage.cli.agents_by_name import AGENTS
from pilotage.cli.failures import one_line
from pilotage.cli.settings import FILE, Settings
from requirements.errors import PilotageError
from taskqueue import agent_cycles, database

#: Ours at the top level of the environment; others may use the same names.
PACKAGES = ("requirements", "cs_config", "taskqueue", "matcher", "optimizers", "agents", "pilotage")
#: The oldest PostgreSQL that has all we use.
_POSTGRESQL = 130000
#: An agent is at work if its latest cycle is not older than this, or than three of its cycles.
_LATE = timedelta(minutes=1)
#: Seconds that a healthy Redis needs at most.
_PATIENCE = 3


class Health(StrEnum):
    """How a finding is meant."""

    GOOD = "good"
    WARNING = "warning"  #: works, but not as it should
    BAD = "bad"  #: does not work, or is dangerous


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question."""

    subject: str
    health: Health
    message: str


def all_of(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Every finding, one after the other."""
    yield from packages()
    yield from files(settings)
    yield from the_database(settings, now)
    yield from redis(settings)


def packages() -> Iterator[Finding]:
    """Whether our top-level packages are really ours: `agents` and `matcher` are common names."""
    home = _location("pilotage")
    for name in PACKAGES:
        place = _location(name)
        owners = set(metadata.packages_distributions().get(name, ())) - {"pilotage"}
        if owners:
            others = ", ".join(sorted(owners))
            message = f"is also in the distribution {others}: install pilotage in an environment of its own"
            yield Finding(subject=f"package {name}", health=Health.BAD, message=message)
        elif place != home:
            message = f"is loaded from {place}, pilotage from {home}: something hides ours"
            yield Finding(subject=f"package {name}", health=Health.BAD, message=message)
    yield Finding(
        subject="packages", health=Health.GOOD, message=f"pilotage {metadata.version('pilotage')} from {home}"
    )


def _location(package: str) -> str:
    spec = util.find_spec(package)
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else "nowhere"


def files(settings: Settings) -> Iterator[Finding]:
    """Whether secrets are for their owner alone, and directories are there."""
    if not settings.home.is_dir():
        message = f"{settings.home} does not exist yet; `pilotage up` and `pilotage db upgrade` make it"
        yield Finding(subject="home", health=Health.WARNING, message=message)
        return
    for path in (settings.key, settings.home / client_env.FILE, settings.home / FILE):
        if path.exists():
            yield _secret(path)
    if not settings.blobs.is_dir():
        message = f"{settings.blobs} does not exist yet; the service makes it"
        yield Finding(subject="blobs", health=Health.WARNING, message=message)


def _secret(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        message = f"others may read it (mode {mode:o}): chmod 600 {path}"
        return Finding(subject=path.name, health=Health.BAD, message=message)
    return Finding(subject=path.name, health=Health.GOOD, message=f"mode {mode:o}")


def the_database(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Whether the database answers, is set up as we need it, has our tables, and is looked after."""
    subject = "database"
    try:
        with databases.opened(settings.database_url, pool_size=1) as engine:
            yield from _settings_of(engine)
            yield Finding(subject=subject, health=Health.GOOD, message=databases.shown(settings.database_url))
            state = database.schema_state(engine)
            if not state.is_current:
                message = f"revision {state.current or 'none'}, wanted {state.head}: `pilotage db upgrade`"
                yield Finding(subject="schema", health=Health.BAD, message=message)
                return
            yield Finding(subject="schema", health=Health.GOOD, message=f"revision {state.head}")
            yield _configuration(engine)
            yield _agents(engine, now)
    except PilotageError as error:
        yield Finding(subject=subject, health=Health.BAD, message=one_line(str(error)))


def _settings_of(engine: Engine) -> Iterator[Finding]:
    with database.reading(engine) as conn:
        if engine.dialect.name == "sqlite":
            mode = conn.execute(text("PRAGMA journal_mode")).scalar_one()
            if mode != "wal":
                message = f"journal mode {mode} instead of wal: is the file on a network file system?"
                yield Finding(subject="database", health=Health.BAD, message=message)
            return
        number = int(conn.execute(text("SHOW server_version_num")).scalar_one())
        if number < _POSTGRESQL:
            message = f"PostgreSQL {number // 10000} is too old, 13 is the oldest that will do"
            yield Finding(subject="database", health=Health.BAD, message=message)
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            value = conn.execute(text(f"SHOW {name}")).scalar_one()
            if value == "off":
                message = f"{name} is off: jobs that were accepted are lost when the power goes"
                yield Finding(subject="database", health=Health.WARNING, message=message)


def _configuration(engine: Engine) -> Finding:
    with database.reading(engine) as conn:
        version = versions.current_version(conn)
        if version == 0:
            message = "none yet: `pilotage up --resources FILE` or `pilotage config apply FILE`"
            return Finding(subject="configuration", health=Health.WARNING, message=message)
        try:
            config = versions.load(conn, version)
        except ConfigError as error:
            message = f"version {version} cannot be read: {one_line(str(error))}"
            return Finding(subject="configuration", health=Health.BAD, message=message)
    message = f"version {version}, {len(config.addresses)} queues"
    return Finding(subject="configuration", health=Health.GOOD, message=message)


def _agents(engine: Engine, now: datetime) -> Finding:
    """Whether somebody runs every agent: one that came with a release is easily forgotten."""
    with database.reading(engine) as conn:
        latest = agent_cycles.latest(conn)
    missing = [
        name
        for name, agent in AGENTS.items()
        if (began := latest.get(name)) is None or now - began > max(_LATE, timedelta(seconds=3 * agent.every))
    ]
    if not missing:
        return Finding(subject="agents", health=Health.GOOD, message=f"at work: {', '.join(AGENTS)}")
    message = f"nobody runs {', '.join(missing)} now: `pilotage agent all`, or `pilotage up`, does"
    return Finding(subject="agents", health=Health.WARNING, message=message)


def redis(settings: Settings) -> Iterator[Finding]:
    """Whether Redis answers, where there is one."""
    if settings.redis_url is None:
        message = "none; the optimizers run inside the service"
        yield Finding(subject="redis", health=Health.GOOD, message=message)
        return
    try:
        with Redis.from_url(
            settings.redis_url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE
        ) as client:
            client.ping()
    except (RedisError, ValueError) as error:
        message = f"does not answer; jobs wait for the sweep: {one_line(str(error))}"
        yield Finding(subject="redis", health=Health.BAD, message=message)
    else:
        yield Finding(subject="redis", health=Health.GOOD, message="answers")
