"""Connections to the database, transactions on it, and its schema; one code for both databases.

Every transaction begins here, in `writing` or `reading`; the functions of the other modules take its
`Connection`. Engines are made after a fork: a connection that two processes share serves neither.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, make_url, text
from sqlalchemy.exc import DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from cs_config import notifications
from taskqueue.db import postgresql, sqlite

#: Tells others that there is something new, by the topics of `rings`.
Notifier = Callable[[frozenset[str]], None]

#: What is raised when the database is away or too busy: nobody's fault, try again later.
UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeout)

#: Any number that no one else takes: whoever holds this lock migrates, the others wait.
_MIGRATION_LOCK = 0x50494C4F54


def connect(
    url: str,
    *,
    pool_size: int = 10,
    pool_timeout: float = 30.0,
    busy_timeout: float = sqlite.BUSY_TIMEOUT,
) -> Engine:
    """Make an engine; the first connection is opened when it is needed.

    Args:
        url: `sqlite:///<file>` or `postgresql://…`.
        pool_size: Connections at most; as many as there are threads that use them.
        pool_timeout: Seconds to wait for a free connection.
        busy_timeout: Seconds to wait for the turn to write, on SQLite.

    Raises:
        ValueError: Another database, or SQLite without a file.
    """
    address = make_url(url)
    match address.get_backend_name():
        case "sqlite":
            engine = sqlite.make_engine(
                address, pool_size=pool_size, pool_timeout=pool_timeout, busy_timeout=busy_timeout
            )
        case "postgresql" | "postgres":
            engine = postgresql.make_engine(address, pool_size=pool_size, pool_timeout=pool_timeout)
        case other:
            raise ValueError(f"{other}: not one of our databases; sqlite:///<file> and postgresql://… are")
    event.listen(engine, "connect", _note_process)
    event.listen(engine, "checkout", _refuse_after_fork)
    return engine


def is_unavailable(error: Exception) -> bool:
    """Whether the database is away or too busy, rather than a statement one that it cannot take.

    A statement with too many values is an OperationalError like a lost connection; but it has a text, the
    connection lives on, and the server has not said a word (PostgreSQL) or nothing but "error" (SQLite).
    """
    if not isinstance(error, OperationalError) or error.statement is None or error.connection_invalidated:
        return isinstance(error, UNAVAILABLE)
    said = getattr(error.orig, "sqlite_errorname", getattr(error.orig, "sqlstate", None))
    return said not in (None, "SQLITE_ERROR")


def set_notifier(engine: Engine, ring: Notifier) -> None:
    """Have this called, with the topics, after commits of what others follow; it neither waits nor fails."""
    engine.update_execution_options(ring=ring)


def _ignore(_topics: frozenset[str]) -> None:
    pass


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that changes something; rolled back when anything is raised in it.

    READ COMMITTED on PostgreSQL; on SQLite the only writer (`BEGIN IMMEDIATE`). After the commit it rings for
    what others follow, where `ring_with` said how.
    """
    turn = sqlite.write_lock(engine) if engine.dialect.name == "sqlite" else nullcontext()
    with turn, engine.connect() as conn:
        notifications.take_topics(conn)  # of a transaction that was not committed
        with conn.begin():
            yield conn
        topics = notifications.take_topics(conn)
    if topics:
        ring: Notifier = engine.get_execution_options().get("ring", _ignore)
        ring(topics)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One transaction that changes nothing; it hinders no writer."""
    with engine.connect() as conn:
        conn = conn.execution_options(postgresql_readonly=True, deferred=True)
        with conn.begin():
            yield conn


class LazyTransaction:
    """A transaction that changes nothing, begun when it is asked for."""

    def __init__(self, engine: Engine, stack: ExitStack) -> None:
        self._engine = engine
        self._stack = stack
        self._conn: Connection | None = None

    @property
    def conn(self) -> Connection:
        """In the transaction."""
        if self._conn is None:
            self._conn = self._stack.enter_context(reading(self._engine))
        return self._conn


@contextmanager
def reading_lazily(engine: Engine) -> Iterator[LazyTransaction]:
    """As `reading`, for those who may have no question: they do not go to the server at all."""
    with ExitStack() as stack:
        yield LazyTransaction(engine, stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """Which revision a database has, and which one this program would give it."""

    current: str | None  #: None: the database is empty
    head: str
    is_newer: bool = False  #: a later release has upgraded it: this one goes on, until it is upgraded too

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to upgrade."""
        return self.current == self.head


def upgrade(url: str) -> None:
    """Bring the schema to this program's revision, whole or not at all; any number may try at once.

    Migrations expand first and contract a release later: release n runs on the schema of n and n+1, and
    leaves the newer one as it is.
    """
    engine = connect(url, pool_size=1, busy_timeout=600)
    try:
        with writing(engine) as conn:
            _wait_for_other_upgrades(conn)
            if not _read_state(conn).is_newer:
                command.upgrade(_configure_alembic(conn), "head")
    finally:
        engine.dispose()


def schema_state(engine: Engine) -> SchemaState:
    """Compare the database's revision with the program's."""
    with reading(engine) as conn:
        return _read_state(conn)


def _read_state(conn: Connection) -> SchemaState:
    known = _list_revisions()
    current = MigrationContext.configure(conn).get_current_revision()
    return SchemaState(current=current, head=known[0], is_newer=current is not None and current not in known)


@cache
def _list_revisions() -> tuple[str, ...]:
    """Those of this program, the newest first."""
    return tuple(each.revision for each in ScriptDirectory.from_config(_configure_alembic()).walk_revisions())


def _wait_for_other_upgrades(conn: Connection) -> None:
    if conn.dialect.name == "sqlite":
        return  # the transaction itself is the lock
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    conn.execute(text("SET LOCAL lock_timeout = 0"))
    conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    # From here on rather give up than let everybody queue up behind us.
    conn.execute(text("SET LOCAL lock_timeout = '10s'"))


def _configure_alembic(conn: Connection | None = None) -> Config:
    config = Config(attributes={"connection": conn})
    config.set_main_option("script_location", "taskqueue:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _note_process(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info["pid"] = os.getpid()


def _refuse_after_fork(_connection: Any, entry: Any, proxy: Any) -> None:
    # The parent still speaks over this connection: leave it alone and open one of our own.
    if entry.info["pid"] != os.getpid():
        entry.dbapi_connection = proxy.dbapi_connection = None
        raise DisconnectionError("this connection belongs to the process that this one was forked from")
