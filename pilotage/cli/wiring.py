"""The composition root: builds and starts the parts of a process from the settings.

What needs optional packages is imported where it is chosen (`errors.EXTRAS`).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import Engine, event

from agents import leader
from cs_config import notifications
from cs_config.errors import ConfigError
from cs_config.versions import store
from cs_config.versions.store import LiveConfiguration
from pilotage.cli import engine as cli_engine
from pilotage.cli.engine import LastSeen
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import InvalidSettings, IssuerSettings, RoleSettings, Settings, SignInSettings
from pilotage.service.auth import callers
from pilotage.service.auth.callers import Role
from pilotage.service.auth.oidc import discovery, issuer
from pilotage.service.auth.oidc.issuer import Issuer, RoleRule, SignIn
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from requirements.errors import InvalidRequest, Problem
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.blob_stores.moving import MovingStore
from taskqueue.blob_stores.place import S3Place
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import clock as clocks
from taskqueue.db import database
from taskqueue.db.clock import DatabaseClock
from taskqueue.db.database import SchemaState
from taskqueue.db.notify import NotificationHub, NotificationTransport, PostgresqlTransport, RedisTransport


def trusted_issuers(settings: Iterable[IssuerSettings]) -> Issuers:
    """The validated issuers; no request is sent to them yet."""
    every = list(settings)
    if problems := [*_problems(every), *_duplicates(every)]:
        raise InvalidSettings(problems)
    return Issuers([TrustedIssuer(_issuer(each)) for each in every])


def _issuer(given: IssuerSettings) -> Issuer:
    vo = given.vo.lower() if given.vo else None
    is_diracx = given.kind == "diracx"
    rules = tuple(RoleRule(**{**each.model_dump(), "role": Role(each.role)}) for each in given.roles) or (
        () if is_diracx else issuer.rules_of_vo(vo or "")
    )
    return Issuer(
        is_diracx=is_diracx,
        name=_name(given),
        url=given.url,
        audiences=frozenset(given.audience),
        vo=vo,
        user_claim=issuer.DIRACX_USER if is_diracx else given.user_claim,
        group_claims=given.groups_claim,
        rules=rules,
        sign_in=_sign_in(given.sign_in),
        authorities=given.authorities,
    )


def _sign_in(given: SignInSettings | None) -> SignIn | None:
    if given is None:
        return None
    secret = (
        given.client_secret_file.read_text(encoding="utf-8").strip() if given.client_secret_file else None
    )
    return SignIn(client_id=given.client_id, client_secret=secret, scopes=given.scopes)


def _name(given: IssuerSettings) -> str:
    return given.name or urlsplit(given.url).hostname or ""


def _problems(issuers: Iterable[IssuerSettings]) -> Iterator[Problem]:
    for each in issuers:
        where = f"issuers/{each.url}"
        if not discovery.is_safe(each.url):
            yield Problem(path=where, message="is not an https address")
        for rule in each.roles:
            # The tokens of DiracX name the VO.
            vo = each.vo or ("any" if each.kind == "diracx" else None)
            yield from _rule_problems(f"{where}/roles", rule, vo)
        files = {"authorities": each.authorities}
        if each.sign_in:
            files["client_secret_file"] = each.sign_in.client_secret_file
        yield from (
            Problem(path=f"{where}/{name}", message=f"{file} cannot be read, or is empty")
            for name, file in files.items()
            if not _is_readable(file)
        )


def _rule_problems(where: str, rule: RoleSettings, vo: str | None) -> Iterator[Problem]:
    try:
        callers.grant(role=rule.role, vo=rule.vo or vo, user="x", group=rule.owner_group, site=rule.site)
    except InvalidRequest as refused:
        for problem in refused.problems:
            yield Problem(path=f"{where}/{problem.path}", message=problem.message)


def _is_readable(file: Path | None) -> bool:
    if file is None:
        return True
    try:
        return bool(file.read_bytes().strip())
    except OSError:
        return False


def _duplicates(issuers: Iterable[IssuerSettings]) -> Iterator[Problem]:
    for what, names in (
        ("url", [each.url.rstrip("/") for each in issuers]),
        ("name", [_name(each) for each in issuers]),
    ):
        for twice in sorted({name for name in names if names.count(name) > 1}):
            yield Problem(path="issuers", message=f"two have the {what} {twice}")


log = logging.getLogger(__name__)

#: Seconds between polls of the configuration; the documentation promises two at most.
CONFIGURATION_EVERY = 1.0
#: Seconds between two commits that show whether the database has lost some.
SEEN_EVERY = 5.0
#: Database connections of a service process: its request threads, claimer, optimizer and agents.
_CONNECTIONS = 20


def open_blobs(settings: Settings) -> BlobStore:
    """The store of archives, during a move both."""
    written = open_place(settings.blobs)
    if settings.other_blobs is None:
        return written
    return MovingStore(written, open_place(settings.other_blobs))


def open_place(place: Path | S3Place) -> BlobStore:
    """The store at this place."""
    if isinstance(place, Path):
        return DirectoryStore(place)
    from taskqueue.blob_stores.s3 import S3Store

    return S3Store(place)


@contextmanager
def open_current_engine(settings: Settings) -> Iterator[Engine]:
    """The engine of a long-running process, on a schema that this release can use and without lost commits.

    A database that goes away while the process starts is refused like one that was away before; once it
    runs, its threads wait for the database.
    """
    engine = cli_engine.make_engine(settings.database_url, pool_size=_CONNECTIONS)
    try:
        with cli_engine.translate_unreachable(settings.database_url):
            _refuse_older(settings, database.schema_state(engine))
            cli_engine.refuse_lost(engine, settings)
            yield engine
    finally:
        engine.dispose()


@contextmanager
def open_replica(settings: Settings) -> Iterator[Engine | None]:
    """The engine of the configured replica, which may be away; None: there is none."""
    if settings.database_replica_url is None:
        yield None
        return
    engine = cli_engine.make_engine(
        settings.database_replica_url, pool_size=_CONNECTIONS, setting="database_replica_url"
    )
    try:
        yield engine
    finally:
        engine.dispose()


def _refuse_older(settings: Settings, state: SchemaState) -> None:
    url = cli_engine.hide_password(settings.database_url)
    if state.current is None:
        raise CommandRefused(f"{url} has no tables: run `pilotage db upgrade`")
    if not (state.is_current or state.is_newer):
        raise CommandRefused(
            f"{url} has the tables of an earlier release ({state.current}, not {state.head}): "
            "run `pilotage db upgrade`"
        )


def import_resources(engine: Engine, settings: Settings) -> int | None:
    """Import the configured resources file, if it changed since its last import; the new version, if any.

    If a version exists already, an invalid or missing file is only logged, so that the process still starts.
    """
    if settings.resources is None:
        return None
    with database.writing(engine) as conn:
        now = clocks.read_time(conn, clocks.utc_now())
        try:
            return store.import_changed(conn, settings.resources, author="pilotage", now=now)
        except ConfigError as error:
            if not (current := store.current_version(conn)):
                raise
            log.error("version %d stays in force, this file is rejected: %s", current, error)  # noqa: TRY400
    return None


@contextmanager
def open_notifications(settings: Settings, engine: Engine) -> Iterator[NotificationHub]:
    """Notifications of commits between processes: through Redis if configured, else through PostgreSQL.

    With SQLite, other processes are not notified.
    """
    hub = NotificationHub(_choose_transport(settings, engine))
    database.set_notifier(engine, hub.publish)
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


def _choose_transport(settings: Settings, engine: Engine) -> NotificationTransport | None:
    if settings.redis_url is not None:
        return RedisTransport(settings.redis_url)
    if engine.dialect.name == "postgresql":
        return PostgresqlTransport(engine, settings.direct_url)
    return None


@contextmanager
def track_last_seen(settings: Settings, engine: Engine) -> Iterator[LastSeen]:
    """What is known of the history of the database, kept current by a thread; refuses a loss at the start."""
    seen = LastSeen(engine, settings)
    seen.start()
    with watch_history(seen, engine):
        yield seen


@contextmanager
def watch_history(seen: LastSeen, engine: Engine) -> Iterator[None]:
    """Look for lost commits in a thread, at once when a connection is opened: perhaps to another server."""
    woken = threading.Event()
    event.listen(engine, "connect", lambda *_: woken.set())
    with repeat_in_thread(seen.look, name="last-seen", every=SEEN_EVERY, woken=woken):
        yield


@contextmanager
def track_clock(engine: Engine) -> Iterator[DatabaseClock]:
    """The clock of the database, measured by a thread."""
    measured = DatabaseClock(engine)

    def measure(_now: datetime) -> None:
        measured.read()

    with repeat_in_thread(measure, name="clock", every=clocks.EVERY):
        yield measured


@contextmanager
def track_configuration(
    engine: Engine, hub: NotificationHub, clock: Callable[[], datetime]
) -> Iterator[LiveConfiguration]:
    """The current configuration, kept current by a thread."""
    live = LiveConfiguration(clock=clock)

    def refresh(_now: datetime) -> None:
        with database.reading(engine) as conn:
            live.refresh(conn)

    refresh(clock())
    woken = threading.Event()
    hub.subscribe(notifications.CONFIGURATION, woken.set)
    with repeat_in_thread(refresh, name="configuration", every=CONFIGURATION_EVERY, woken=woken):
        yield live


@contextmanager
def repeat_in_thread(
    cycle: Callable[[datetime], object],
    *,
    name: str,
    every: float,
    first_pause: float | None = None,
    woken: threading.Event | None = None,
    clock: Callable[[], datetime] = clocks.utc_now,
) -> Iterator[None]:
    """Call `cycle` every so many seconds in its own thread until the end of the block; `woken`: at once."""
    stop, woken = threading.Event(), woken or threading.Event()
    pauses = {"every": every, "first_pause": first_pause}
    arguments = {"name": name, **pauses, "stop": stop, "woken": woken, "clock": clock}
    thread = threading.Thread(target=leader.run, args=(cycle,), kwargs=arguments, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        woken.set()
        thread.join(30)
