"""SQLite as we need it: durable, one writer at a time, readers never in the way.

Traps that the settings here close: synchronous NORMAL loses accepted jobs when the power goes; a
transaction that reads first and writes later fails at once when another wrote in between, so a
writing one is BEGIN IMMEDIATE; foreign keys are off unless asked for.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

#: Seconds that a writer waits for its turn.
BUSY_TIMEOUT = 30.0

_SETTINGS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA journal_size_limit = 67108864",  # bytes that the log keeps on disk after a burst
)


def make_engine(url: URL, *, pool_size: int, pool_timeout: float, busy_timeout: float) -> Engine:
    """Make an engine for the file that `url` names.

    Raises:
        ValueError: There is no file: connections to a database in memory do not see each other.
    """
    if not url.database or url.database == ":memory:":
        raise ValueError(f"{url}: SQLite needs a file here, sqlite:///<file>")
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=pool_timeout,
        connect_args={"timeout": busy_timeout},
        execution_options={"turn": threading.Lock(), "turn_timeout": busy_timeout},
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def write_lock(engine: Engine) -> Iterator[None]:
    """Queue up with the other writers of this process; SQLite itself lets them poll for their turn.

    Raises:
        PoolTimeout: It took longer than the busy time-out.
    """
    options = engine.get_execution_options()
    turn: threading.Lock = options["turn"]
    seconds: float = options["turn_timeout"]
    if not turn.acquire(timeout=seconds):
        raise PoolTimeout(f"waited {seconds:g} s for the turn to write")
    try:
        yield
    finally:
        turn.release()


def _prepare(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver leaves BEGIN to `_begin`
    for setting in _SETTINGS:
        connection.execute(setting)


def _begin(conn: Connection) -> None:
    deferred = conn.get_execution_options().get("deferred", False)
    conn.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")
