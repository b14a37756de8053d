"""What may be wrong with an installation: one function for each question, none changes anything."""

import stat
from collections.abc import Iterator
from datetime import datetime
from importlib import metadata, util
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from pilotage.cli import certificate_findings, client_env, database_findings, databases, issuer_findings
from pilotage.cli.failures import one_line
from pilotage.cli.finding import Finding, Health
from pilotage.cli.settings import FILE, Settings
from pilotage.service.parts import utc_now

#: Ours at the top level of the environment; others may use the same names.
PACKAGES = ("requirements", "cs_config", "taskqueue", "matcher", "optimizers", "agents", "pilotage")
#: Seconds that a healthy Redis needs at most.
_PATIENCE = 3


def all_of(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Every finding, one after the other."""
    yield from packages()
    yield from files(settings)
    yield from database_findings.all_of(settings, now)
    yield from redis(settings)
    yield from certificate_findings.all_of(settings, now)
    yield from issuer_findings.all_of(settings, utc_now)


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
    mine = [settings.key, settings.home / client_env.FILE]
    urls = filter(None, (settings.database_url, settings.direct_url, settings.redis_url))
    if any(map(databases.may_have_password, urls)):
        mine.append(settings.home / FILE)  # where it may stand
    for path in mine:
        if path.exists():
            yield _secret(path, nobody=0o077)
    for path in settings.given_secrets:
        yield from _given(path)
    if not settings.blobs.is_dir():
        message = f"{settings.blobs} does not exist yet; the service makes it"
        yield Finding(subject="blobs", health=Health.WARNING, message=message)
    for name, place in (("home", settings.home), ("blobs", settings.blobs)):
        if _is_open(place):
            message = f"others on this host may read what jobs bring and leave there: chmod 700 {place}"
            yield Finding(subject=name, health=Health.WARNING, message=message)


def _is_open(place: Path) -> bool:
    """Whether a way leads there for everybody."""
    return place.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (place, *place.parents))


def _given(path: Path) -> Iterator[Finding]:
    try:
        if path.exists():
            yield _secret(path, nobody=0o007)  # a group may be there for it
    except OSError as error:
        yield Finding(
            subject=path.name, health=Health.BAD, message=f"cannot be read: {error.strerror}: {path}"
        )


def _secret(path: Path, *, nobody: int) -> Finding:
    """Whether a secret is one; `nobody`: bits of the mode that let those in who may not read it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & nobody:
        message = f"others may read it (mode {mode:o}): chmod {mode & ~nobody:o} {path}"
        return Finding(subject=path.name, health=Health.BAD, message=message)
    return Finding(subject=path.name, health=Health.GOOD, message=f"mode {mode:o}")


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
