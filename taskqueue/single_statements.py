"""Statements that go to PostgreSQL through its driver alone, as they are, for those that cost time elsewhere.

The driver would look for placeholders of its own in them each time, SQLAlchemy would wrap each row. What the
driver says is wrong is said in the words of SQLAlchemy, so that callers need to know no others.
"""

import os
import select
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import psycopg
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.exc import DBAPIError

#: Seconds of rest after which the server is asked whether it is still there, though it has said nothing.
_RESTED: Final = 1.0

Rows = list[tuple[Any, ...]]
_Driver = psycopg.Connection[Any]


class Server(Protocol):
    """What carries statements out."""

    def rows(self, statement: str, values: Sequence[object]) -> Rows:
        """What a statement returns, with `$1` and so on for its values.

        Raises:
            DBAPIError: The server refuses it, or is away.
        """


class InTransaction:
    """In the transaction of a connection; if a statement fails, it has to be rolled back."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def rows(self, statement: str, values: Sequence[object]) -> Rows:
        """What a statement returns."""
        try:
            return _rows(self._conn.dialect, _driver(self._conn), statement, values)
        except DBAPIError as error:
            if error.connection_invalidated:
                self._conn.invalidate()
            raise


class SingleStatements:
    """Each is a transaction of its own, committed when it returns; for one thread.

    Its connection is none of the engine's pool: it is kept, so that nothing is asked between two statements.
    It goes when the engine is disposed of. A child that was forked makes its own and leaves its parent's
    alone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        close = weakref.WeakMethod(self.close)
        event.listen(engine, "engine_disposed", lambda _: (alive := close()) and alive())
        self._driver: _Driver | None = None
        self._closing: weakref.finalize[[], SingleStatements] | None = None
        self._used = 0.0
        self._process = 0  # whose connection it is

    def rows(self, statement: str, values: Sequence[object]) -> Rows:
        """What a statement returns."""
        driver = self._ready()
        try:
            return _rows(self._engine.dialect, driver, statement, values)
        except DBAPIError as error:
            if error.connection_invalidated:
                self.close()
            raise
        finally:
            self._used = time.monotonic()

    def close(self) -> None:
        """Give the connection up; the next statement takes a new one."""
        if self._closing is not None:
            self._closing()
        self._driver = self._closing = None

    def _ready(self) -> _Driver:
        if self._driver is not None and (self._process != os.getpid() or not self._answers(self._driver)):
            self.close()
        if self._driver is None:
            self._driver = self._connected()
        return self._driver

    def _connected(self) -> _Driver:
        conn = self._engine.connect()
        driver = _driver(conn)
        conn.detach()
        driver.autocommit = True
        self._process = os.getpid()
        self._closing = weakref.finalize(self, partial(_close, driver, self._process))
        return driver

    def _answers(self, driver: _Driver) -> bool:
        if time.monotonic() - self._used < _RESTED and not _has_word(driver):
            return True
        try:
            return self._engine.dialect.do_ping(driver)  # type: ignore[arg-type]
        except psycopg.Error:
            return False


def _close(driver: _Driver, process: int) -> None:
    # Whoever was forked would end the session that its parent is in.
    if os.getpid() == process:
        driver.close()


def _has_word(driver: _Driver) -> bool:
    """Whether the server has said something that nobody asked for, as it does when it closes a connection."""
    try:
        waiting = select.poll()
        waiting.register(driver.pgconn.socket, select.POLLIN)
        return bool(waiting.poll(0))
    except psycopg.Error:
        return True


def _driver(conn: Connection) -> _Driver:
    driver = conn.connection.dbapi_connection
    if not isinstance(driver, psycopg.Connection):
        raise TypeError(f"{type(driver).__name__} is no connection to PostgreSQL")
    return driver


def _rows(dialect: Dialect, driver: _Driver, statement: str, values: Sequence[object]) -> Rows:
    try:
        with psycopg.RawCursor(driver) as cursor:
            return cursor.execute(statement, values).fetchall()
    except psycopg.Error as error:
        is_gone = dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
        raise DBAPIError.instance(
            statement, (), error, psycopg.Error, connection_invalidated=is_gone, dialect=dialect
        ) from error
