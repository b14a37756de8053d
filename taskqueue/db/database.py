"""Database connections, transactions with retries, and schema, for PostgreSQL and SQLite.

Every transaction begins here, in `writing` or `reading`; the functions of the other modules take its
`Connection`. Engines are made after a fork: processes must not share a connection.

SQLite is set to be durable, with one writer at a time and no blocking by readers. Traps that are avoided:
synchronous NORMAL loses accepted jobs at a power failure; a transaction that reads first and writes later
fails at once when another one wrote in between, so a writing one is BEGIN IMMEDIATE; foreign keys are off by
default.
"""

import functools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from cs_config import notifications
from taskqueue.db import postgresql

if TYPE_CHECKING:
    from alembic.config import Config

#: Seconds that a writer waits for the write lock.
BUSY_TIMEOUT = 30.0

#: The first version that returns what it changes (`RETURNING`).
_OLDEST_SQLITE = (3, 35)
_SETTINGS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = FULL",
    "PRAGMA journal_size_limit = 67108864",  # bytes of the WAL file kept after a burst
)


def make_engine(url: URL, *, pool_size: int, pool_timeout: float, busy_timeout: float) -> Engine:
    """Make an engine for a file; connections to a database in memory would not see each other."""
    if not url.database or url.database == ":memory:":
        raise ValueError(f"{url}: SQLite needs a file here, sqlite:///<file>")
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        oldest = ".".join(map(str, _OLDEST_SQLITE))
        raise ValueError(
            f"SQLite {sqlite3.sqlite_version} of this Python is too old, {oldest} is the oldest that "
            "will do: use PostgreSQL, or a Python with a newer one"
        )
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        hide_parameters=True,  # they may be tokens or descriptions, and errors are logged
        pool_timeout=pool_timeout,
        connect_args={"timeout": busy_timeout},
        execution_options={"write_lock": threading.Lock(), "write_lock_timeout": busy_timeout},
    )
    event.listen(engine, "do_connect", partial(_create_private, url.database))
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def write_lock(engine: Engine) -> Iterator[None]:
    """Queue of this process's writers; SQLite itself would let them poll. PoolTimeout after the busy time."""
    options = engine.get_execution_options()
    lock: threading.Lock = options["write_lock"]
    seconds: float = options["write_lock_timeout"]
    if not lock.acquire(timeout=seconds):
        raise PoolTimeout(f"waited {seconds:g} s for the write lock of SQLite")
    try:
        yield
    finally:
        lock.release()


def _create_private(database: str, *_: object) -> None:
    """Create the database for its owner alone; SQLite gives its other files the same rights.

    An existing file is not opened: closing it would drop the locks of this process.
    """
    with suppress(OSError):
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _prepare(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # BEGIN is issued by `_begin`, not by the driver
    _begin_wal(connection)
    for setting in _SETTINGS:
        connection.execute(setting)


def _begin_wal(connection: sqlite3.Connection) -> None:
    """Write ahead of changes from now on.

    Of several connections that begin so with a new file, SQLite refuses some at once instead of waiting.
    """
    [milliseconds] = connection.execute("PRAGMA busy_timeout").fetchone()
    until = time.monotonic() + milliseconds / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() >= until:
                raise
            threading.Event().wait(0.01)
        else:
            return


def _begin(conn: Connection) -> None:
    deferred = conn.get_execution_options().get("deferred", False)
    conn.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: Publishes topics (see `cs_config.notifications`) to other processes.
Notifier = Callable[[frozenset[str]], None]

#: Errors raised when the database is away, overloaded or has lost commits; to be retried later.
UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeout)

#: Arbitrary key of the advisory lock that serialises migrations.
_MIGRATION_LOCK = 0x50494C4F54
#: Times that an upgrade beside processes at work is begun.
_UPGRADE_TRIES: Final = 10


def connect(
    url: str, *, pool_size: int = 10, pool_timeout: float = 30.0, busy_timeout: float = BUSY_TIMEOUT
) -> Engine:
    """Make an engine for `sqlite:///<file>` or `postgresql://…`; it connects when it is first used.

    `pool_size` is the maximum number of connections: as many as threads that use them. Both times are seconds
    to wait: for a free connection, and for the write lock of SQLite.
    """
    address = make_url(url)
    match address.get_backend_name():
        case "sqlite":
            engine = make_engine(
                address, pool_size=pool_size, pool_timeout=pool_timeout, busy_timeout=busy_timeout
            )
        case "postgresql" | "postgres":
            engine = postgresql.make_engine(address, pool_size=pool_size, pool_timeout=pool_timeout)
        case other:
            raise ValueError(f"{other}: unsupported database; use sqlite:///<file> or postgresql://…")
    event.listen(engine, "connect", _note_process)
    event.listen(engine, "checkout", _refuse_after_fork)
    return engine


def is_unavailable(error: Exception) -> bool:
    """Whether the database is away or overloaded, rather than the statement invalid.

    A statement with too many values raises OperationalError as a lost connection does, but it has a text,
    the connection stays valid, and the server returned no code (PostgreSQL) or a generic one (SQLite).
    """
    if not isinstance(error, OperationalError) or error.statement is None or error.connection_invalidated:
        return isinstance(error, UNAVAILABLE)
    code = getattr(error.orig, "sqlite_errorname", getattr(error.orig, "sqlstate", None))
    return code not in (None, "SQLITE_ERROR")


class CommitsLost(OperationalError):
    """The database has lost commits: nothing is stored in it until a recovery.

    It is logged by the thread that notices it, once, so that others need not.
    """

    def __init__(self) -> None:
        super().__init__(None, None, Exception(LOST))


#: What the database fails to do after lost commits, and the remedy.
LOST: Final = "it has lost commits: an operator has to run `pilotage db recover`"


def set_lost(engine: Engine, *, is_lost: bool) -> None:
    """Refuse to write, by `CommitsLost`, or write again."""
    engine.update_execution_options(is_lost=is_lost)


def is_lost(engine: Engine) -> bool:
    """Whether nothing is stored because commits were lost."""
    return bool(engine.get_execution_options().get("is_lost"))


def require_history(engine: Engine) -> None:
    """Raise `CommitsLost` after a loss of commits, until a recovery."""
    if is_lost(engine):
        raise CommitsLost


#: Codes of the databases for "cannot store", and what they mean.
_NO_STORE: Final = {
    "53100": "its disk is full",
    "SQLITE_FULL": "its disk is full",
    "SQLITE_READONLY": "it is read-only",
}


def find_store_fault(error: BaseException) -> str | None:
    """Why the database, which answers, stores nothing; None: the error is another one."""
    if isinstance(error, CommitsLost):
        return LOST
    orig = getattr(error, "orig", None)
    if postgresql.takes_no_writes(orig):
        return "it is read-only"
    code: str = getattr(orig, "sqlite_errorname", None) or getattr(orig, "sqlstate", None) or ""
    return next((fault for known, fault in _NO_STORE.items() if code.startswith(known)), None)


#: serialization_failure, deadlock_detected: the transaction was rolled back, and the rival continues. Rare,
#: since locks are taken in the same order everywhere (`jobs.transitions`); but a role or a database may be
#: set to SERIALIZABLE, and administrators lock rows by hand.
_CONFLICTS: Final = frozenset({"40001", "40P01"})
_LOCK_NOT_AVAILABLE: Final = "55P03"
_QUERY_CANCELED: Final = "57014"
#: Two processes claimed for one pilot at once, see `pilots.slots`.
_RACED: Final = "uq_attempts_claim_number"


def is_conflict(error: BaseException) -> bool:
    """Whether a retry is likely to succeed at once."""
    if not isinstance(error, DBAPIError):
        return False
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return getattr(error.orig, "sqlstate", None) in _CONFLICTS or constraint == _RACED


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether a statement gave up waiting for a row that another transaction has locked."""
    return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def is_statement_timeout(error: Exception) -> bool:
    """Whether a statement took longer than allowed; never on SQLite."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _QUERY_CANCELED


def run_with_retry(
    work: Callable[[], _Result],
    *,
    tries: int = 4,
    is_passing: Callable[[DBAPIError], bool] = is_conflict,
) -> _Result:
    """Run idempotent work, at most `tries` times while it fails with a conflict.

    The work begins its own transactions; those committed before the failed one are repeated.
    """
    for left in reversed(range(tries)):
        try:
            return work()
        except DBAPIError as error:
            if not left or not is_passing(error):
                raise
            log.info("conflict with another transaction, trying again: %s", error.orig)
    raise ValueError(f"tries must be at least 1, not {tries}")


def retry_on_conflict(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function with `run_with_retry`."""

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return run_with_retry(lambda: function(*args, **kwargs))

    return wrapper


def set_notifier(engine: Engine, notifier: Notifier) -> None:
    """Set the function called with the topics after each commit; it must neither block nor raise."""
    engine.update_execution_options(notifier=notifier)


@contextmanager
def writing(engine: Engine, *, despite_loss: bool = False) -> Iterator[Connection]:
    """A transaction that changes data; rolled back on any exception.

    READ COMMITTED on PostgreSQL; the only writer on SQLite (`BEGIN IMMEDIATE`). After the commit the topics
    of the transaction go to the notifier. After a loss of commits `CommitsLost`, unless `despite_loss`.
    """
    if not despite_loss:
        require_history(engine)
    turn = write_lock(engine) if engine.dialect.name == "sqlite" else nullcontext()
    with turn, engine.connect() as conn:
        notifications.take_topics(conn)  # left from a transaction that was rolled back
        with conn.begin():
            yield conn
        topics = notifications.take_topics(conn)
    notifier: Notifier | None = engine.get_execution_options().get("notifier")
    if topics and notifier is not None:
        with after_commit("notify other processes of a change"):
            notifier(topics)


@contextmanager
def after_commit(what: str) -> Iterator[None]:
    """For what a request still does after its commit: an error is logged, and the answer is given.

    A client that gets an error takes the change for undone, and sends it again.
    """
    try:
        yield
    except Exception as error:  # of any kind
        if is_unavailable(error):
            log.warning(
                "the change is stored, the database is unavailable for what follows: %s: %s", what, error
            )
        else:
            log.exception("the change is stored; what followed failed: %s", what)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read-only transaction; it blocks no writer."""
    with engine.connect() as conn:
        conn = conn.execution_options(postgresql_readonly=True, deferred=True)
        with conn.begin():
            yield conn


class LazyTransaction:
    """A read-only transaction that begins at its first use."""

    def __init__(self, engine: Engine, stack: ExitStack) -> None:
        self._engine = engine
        self._stack = stack
        self._conn: Connection | None = None

    @property
    def conn(self) -> Connection:
        """The connection, in the transaction."""
        if self._conn is None:
            self._conn = self._stack.enter_context(reading(self._engine))
        return self._conn


class NeedsDatabase(Exception):
    """Data that are not cached are needed."""


class NoTransaction(LazyTransaction):
    """Stands for a transaction where the database must not be contacted: in the event loop."""

    def __init__(self) -> None:
        """Create it, without an engine."""

    @property
    def conn(self) -> Connection:
        """Always raises `NeedsDatabase`."""
        raise NeedsDatabase


@contextmanager
def reading_lazily(engine: Engine) -> Iterator[LazyTransaction]:
    """The same as `reading`, but the server is not contacted if `conn` is never used."""
    with ExitStack() as stack:
        yield LazyTransaction(engine, stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """Schema revision of a database, and the revision of this program."""

    current: str | None  #: None: the database is empty
    head: str
    is_newer: bool = False  #: upgraded by a later release; this one still works with it

    @property
    def is_current(self) -> bool:
        """Whether no upgrade is needed."""
        return self.current == self.head


def upgrade(url: str, report: Callable[[str], None] = log.info) -> bool:
    """Upgrade the schema to this program's revision in one transaction; concurrent calls are safe.

    Returns whether the database was empty.

    Processes that work meanwhile lock tables in another order than migrations, and some for long: then the
    transaction is rolled back and carried out again. Indexes of tables with rows follow it, beside writers;
    `report` gets a line about each of them.

    Migrations expand first and contract a release later: release n works with the schemas of n and n+1, and
    leaves the newer one unchanged.
    """
    engine = connect(url, pool_size=1, busy_timeout=600)
    try:
        return run_with_retry(
            lambda: _upgrade_once(engine, report),
            tries=_UPGRADE_TRIES,
            is_passing=lambda error: is_conflict(error) or is_lock_timeout(error),
        )
    finally:
        engine.dispose()


def _upgrade_once(engine: Engine, report: Callable[[str], None]) -> bool:
    with writing(engine) as conn:
        _wait_for_other_upgrades(conn)
        before = _read_state(conn)
        if before.is_newer:
            return False
        from alembic import command

        from taskqueue.db import missing_indexes

        command.upgrade(_configure_alembic(conn), "head")
        are_built = missing_indexes.build_at_once(conn, report)
    if not are_built:
        missing_indexes.build_beside_writers(engine, report)
    return before.current is None


def schema_state(engine: Engine) -> SchemaState:
    """Compare the database's revision with the program's."""
    with reading(engine) as conn:
        return _read_state(conn)


def _read_state(conn: Connection) -> SchemaState:
    # Without Alembic: every process of the service reads it at its start, and importing that takes 0.15 s.
    known = _list_revisions()
    current: str | None = None
    if inspect(conn).has_table("alembic_version"):
        current = conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return SchemaState(current=current, head=known[0], is_newer=current is not None and current not in known)


@cache
def _list_revisions() -> tuple[str, ...]:
    """Revisions of this program, newest first: the beginnings of the names of its migrations."""
    files = resources.files("taskqueue.migrations.versions").iterdir()
    return tuple(sorted({each.name[:4] for each in files if each.name[:4].isdigit()}, reverse=True))


def _wait_for_other_upgrades(conn: Connection) -> None:
    if conn.dialect.name == "sqlite":
        return  # the transaction itself is the lock
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    conn.execute(text("SET LOCAL lock_timeout = 0"))
    conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    # From here on fail fast: a waiting ALTER TABLE would block all other transactions behind it.
    conn.execute(text("SET LOCAL lock_timeout = '10s'"))


def _configure_alembic(conn: Connection | None = None) -> "Config":
    from alembic.config import Config

    config = Config(attributes={"connection": conn})
    config.set_main_option("script_location", "taskqueue:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _note_process(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info["pid"] = os.getpid()


def _refuse_after_fork(_connection: Any, entry: Any, proxy: Any) -> None:
    # The parent still uses this connection: leave it open and make a new one.
    if entry.info["pid"] != os.getpid():
        entry.dbapi_connection = proxy.dbapi_connection = None
        raise DisconnectionError("this connection belongs to the process that this one was forked from")
