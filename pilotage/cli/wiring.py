"""The composition root: from settings to parts that run."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime

from sqlalchemy import Engine

from agents import loop
from cs_config import file_imports, rings, versions
from cs_config.errors import ConfigError
from cs_config.live import LiveConfiguration
from matcher.claimer import Claimer
from matcher.matcher import Matcher
from optimizers.doorbell import RedisDoorbell
from optimizers.inline import InlineOptimizer
from pilotage.cli import databases, issuers
from pilotage.cli.failures import Refused
from pilotage.cli.last_seen import LastSeen
from pilotage.cli.settings import Settings
from pilotage.service import key_file
from pilotage.service.key_file import KeyFile
from pilotage.service.metrics import Metrics
from pilotage.service.parts import Parts, utc_now
from pilotage.service.tokens import Tokens
from taskqueue import database
from taskqueue.bells.bell import Bell
from taskqueue.bells.postgresql_wire import PostgresqlWire
from taskqueue.bells.redis_wire import RedisWire
from taskqueue.bells.wire import Wire
from taskqueue.blob_store import DirectoryStore
from taskqueue.database import SchemaState

log = logging.getLogger(__name__)

#: Seconds until a change of the configuration is seen; two are promised.
CONFIGURATION_EVERY = 1.0
#: Seconds between notes of how far the database has come.
SEEN_EVERY = 5.0
#: Database connections of a service process: its request threads, claimer, optimizer and agents.
_CONNECTIONS = 20

Ring = Callable[[Sequence[int]], None]


@contextmanager
def opened(settings: Settings) -> Iterator[Engine]:
    """The engine of a long-running process, on a schema that this release can use.

    Raises:
        Refused: The database is away, or its schema is older than this release.
    """
    engine = databases.connect(settings.database_url, pool_size=_CONNECTIONS)
    try:
        with databases.away_in_one_line(settings.database_url):
            _refuse_older(settings, database.schema_state(engine))
        yield engine
    finally:
        engine.dispose()


def _refuse_older(settings: Settings, state: SchemaState) -> None:
    url = databases.shown(settings.database_url)
    if state.current is None:
        raise Refused(f"{url} has no tables: run `pilotage db upgrade`")
    if not (state.is_current or state.is_newer):
        raise Refused(
            f"{url} has the tables of an earlier release ({state.current}, not {state.head}): "
            "run `pilotage db upgrade`"
        )


def import_resources(engine: Engine, settings: Settings) -> int | None:
    """Import the configuration file that the settings name, if it changed since its last import.

    A file that is wrong or gone stops nobody who has a version already: it is told, and that one stays.

    Returns:
        The version that it became; None if nothing was imported.

    Raises:
        ConfigError: The file is wrong, and there is no version to go on with.
    """
    if settings.resources is None:
        return None
    with database.writing(engine) as conn:
        try:
            return file_imports.import_changed(conn, settings.resources, author="pilotage", now=utc_now())
        except ConfigError as error:
            if not (current := versions.current_version(conn)):
                raise
            log.error("version %d stays in force, this file is refused: %s", current, error)  # noqa: TRY400
    return None


@contextmanager
def bell(settings: Settings, engine: Engine) -> Iterator[Bell]:
    """What tells other processes at once of what this one commits, and this one of theirs.

    By Redis where there is one, else by PostgreSQL; with SQLite there are no others that matter.
    """
    rung = Bell(_wire(settings, engine))
    database.ring_with(engine, rung.ring)
    rung.start()
    try:
        yield rung
    finally:
        rung.stop()


def _wire(settings: Settings, engine: Engine) -> Wire | None:
    if settings.redis_url is not None:
        return RedisWire(settings.redis_url)
    if engine.dialect.name == "postgresql":
        return PostgresqlWire(engine, settings.direct_url)
    return None


@contextmanager
def last_seen(settings: Settings, engine: Engine) -> Iterator[LastSeen]:
    """How far the installation has come, kept current by a thread.

    Raises:
        Refused: The database has lost commits, and nobody has recovered from that.
    """
    seen = LastSeen(engine, settings)
    with repeated(seen.look, name="last-seen", every=SEEN_EVERY):
        yield seen


@contextmanager
def live_configuration(engine: Engine, rung: Bell) -> Iterator[LiveConfiguration]:
    """The current configuration, kept current by a thread."""
    live = LiveConfiguration()

    def refresh(_now: datetime) -> None:
        with database.reading(engine) as conn:
            live.refresh(conn)

    refresh(utc_now())
    woken = threading.Event()
    rung.answer(rings.CONFIGURATION, woken.set)
    with repeated(refresh, name="configuration", every=CONFIGURATION_EVERY, woken=woken):
        yield live


@contextmanager
def repeated(
    cycle: Callable[[datetime], object], *, name: str, every: float, woken: threading.Event | None = None
) -> Iterator[None]:
    """Call `cycle` in a thread of its own, again and again, until the end of the block.

    Args:
        cycle: What is to be done.
        name: Of the thread.
        every: Seconds between two calls.
        woken: Has the next call come at once.
    """
    stop, woken = threading.Event(), woken or threading.Event()
    arguments = {"name": name, "every": every, "stop": stop, "woken": woken}
    thread = threading.Thread(target=loop.run, args=(cycle,), kwargs=arguments, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        woken.set()
        thread.join(30)


@contextmanager
def running(settings: Settings, engine: Engine) -> Iterator[Parts]:
    """All parts of a service process, their threads started; ended in the reverse order."""
    with ExitStack() as stack:
        seen = stack.enter_context(last_seen(settings, engine))
        rung = stack.enter_context(bell(settings, engine))
        live = stack.enter_context(live_configuration(engine, rung))
        metrics = Metrics()
        matcher = Matcher(engine, lambda: live.current, utc_now)
        claimer = Claimer(engine, matcher)
        trusted = issuers.trusted(settings.issuers)
        claimer.start()
        stack.callback(claimer.stop)
        rung.answer(rings.CHANGES, matcher.rung)
        rung.answer(rings.CHANGES, claimer.wake)
        yield Parts(
            engine=engine,
            live=live,
            matcher=matcher,
            claimer=claimer,
            blobs=DirectoryStore(settings.blobs),
            tokens=_tokens(settings, seen),
            issuers=trusted,
            sign_in_ways=trusted.sign_in_ways,
            ring=stack.enter_context(_doorbell(settings, engine, live, metrics)),
            metrics=metrics,
        )


def _tokens(settings: Settings, seen: LastSeen) -> Tokens:
    file = KeyFile(settings.key)  # looks first: a change after that is not overlooked
    ring = key_file.load_or_create(settings.key)
    return Tokens(ring, changed=file.changed, incarnation=lambda: seen.incarnation)


@contextmanager
def _doorbell(
    settings: Settings, engine: Engine, live: LiveConfiguration, metrics: Metrics
) -> Iterator[Ring]:
    """What tells the optimizers of new jobs: workers through Redis, or else a thread of this process."""
    if settings.redis_url is not None:
        yield RedisDoorbell(settings.redis_url).ring
        return
    optimizer = InlineOptimizer(engine, lambda: live.current, observe=metrics.optimized)
    optimizer.start()
    try:
        yield optimizer.ring
    finally:
        optimizer.stop()
