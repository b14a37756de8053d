"""SQLite settings: durable, one writer at a time, no blocking by readers.

Traps that the settings here avoid: synchronous NORMAL loses accepted jobs at a power failure; a transaction
that reads first and writes later fails at once when another one wrote in between, so a writing one is BEGIN
IMMEDIATE; foreign keys are off by default.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

#: Seconds that a writer waits for the write lock.
BUSY_TIMEOUT = 30.0

_SETTINGS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA journal_size_limit = 67108864",  # bytes of the WAL file kept after a burst
)


def make_engine(url: URL, *, pool_size: int, pool_timeout: float, busy_timeout: float) -> Engine:
    """Make an engine for a file; connections to a database in memory would not see each other."""
    if not url.database or url.database == ":memory:":
        raise ValueError(f"{url}: SQLite needs a file here, sqlite:///<file>")
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
    for setting in _SETTINGS:
        connection.execute(setting)


def _begin(conn: Connection) -> None:
    deferred = conn.get_execution_options().get("deferred", False)
    conn.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")
