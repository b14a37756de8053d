"""`pilotage doctor`: checks of packages, files, certificate, issuers and Redis; none changes anything.

Without them, an expired certificate is noticed when clients fail, and a wrong issuer shows only as a 401.
"""

import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from importlib import metadata, util
from pathlib import Path

import typer
from cryptography import x509

from pilotage.cli import engine, home_directory, issuer_settings, output
from pilotage.cli.checks import database
from pilotage.cli.checks.finding import Finding, Health
from pilotage.cli.errors import REFUSED, explain_missing, one_line
from pilotage.cli.home_directory import FILE
from pilotage.cli.processes import tls
from pilotage.cli.settings import InvalidSettings, Settings, command_with
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.oidc.discovery import IssuerAway, IssuerKeys, Published
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.oidc.issuers import LEEWAY
from pilotage.service.services import utc_now
from taskqueue.jobs.optimizer_queue import OptimizerQueueState

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
        return Health.WARNING, f"{name} is over in {(until - now).days} days, {until.isoformat()}: renew it"
    return Health.GOOD, f"good until {until.isoformat()}"


#: Endpoints for signing in.
_SIGN_IN = ("authorization_endpoint", "token_endpoint")


def check_issuers(settings: Settings, clock: Callable[[], datetime]) -> Iterator[Finding]:
    """Check that each issuer answers, has usable keys and sign-in endpoints, and agrees on the time."""
    try:
        trusted = [each.issuer for each in issuer_settings.trusted_issuers(settings.issuers)]
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
    yield from check_files(settings)
    yield from database.check_database(settings, now)
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


def _location(package: str) -> str:
    spec = util.find_spec(package)
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else "nowhere"


def check_files(settings: Settings) -> Iterator[Finding]:
    """Check that secrets are private to their owner, and that directories exist."""
    if not settings.home.is_dir():
        message = f"{settings.home} does not exist yet; `pilotage up` and `pilotage db upgrade` make it"
        yield Finding("home", Health.WARNING, message)
        return
    mine = [settings.key, settings.home / home_directory.CLIENT_ENV]
    urls = filter(None, (settings.database_url, settings.direct_url, settings.redis_url))
    if any(map(engine.may_have_password, urls)):
        mine.append(settings.home / FILE)  # the URL with the password may be set there
    for path in mine:
        if path.exists():
            yield _check_secret(path, nobody=0o077)
    for path in settings.foreign_secrets:
        yield from _check_foreign(path)
    if not settings.blobs.is_dir():
        message = f"{settings.blobs} does not exist yet; the service makes it"
        yield Finding("blobs", Health.WARNING, message)
    for name, place in (("home", settings.home), ("blobs", settings.blobs)):
        if _is_open(place):
            message = f"others on this host may read what jobs bring and leave there: chmod 700 {place}"
            yield Finding(name, Health.WARNING, message)


def _is_open(place: Path) -> bool:
    """Whether all users can reach the directory."""
    return place.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (place, *place.parents))


def _check_foreign(path: Path) -> Iterator[Finding]:
    try:
        if path.exists():
            yield _check_secret(path, nobody=0o007)  # a group may own it
    except OSError as error:
        yield Finding(path.name, Health.BAD, f"cannot be read: {error.strerror}: {path}")


def _check_secret(path: Path, *, nobody: int) -> Finding:
    """Check the mode of a secret; `nobody`: bits that must not be set."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & nobody:
        message = f"others may read it (mode {mode:o}): chmod {mode & ~nobody:o} {path}"
        return Finding(path.name, Health.BAD, message)
    return Finding(path.name, Health.GOOD, f"mode {mode:o}")


def check_redis(settings: Settings) -> Iterator[Finding]:
    """Check that Redis answers, if it is configured."""
    if settings.redis_url is None:
        yield Finding("redis", Health.GOOD, "none; the optimizers run inside the service")
        return
    try:
        from redis import Redis

        from optimizers.workers import rq
    except ModuleNotFoundError as error:
        yield Finding("redis", Health.BAD, str(explain_missing(error)))
        return
    try:
        with Redis.from_url(
            settings.redis_url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE
        ) as client:
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
    numbers = f"{state.waiting} batches of jobs wait, {state.failed} failed in the last hour"
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
