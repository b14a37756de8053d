"""Statements of which each is a transaction of its own, from one thread, at the cost of the driver alone.

The connection is kept, so that nothing is asked of a pool between two statements; what the driver says is
wrong is said in the words of SQLAlchemy, so that callers need to know no others.
"""

import time
import weakref
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

#: Seconds of rest after which the server is asked whether it is still there.
_RESTED: Final = 1.0


class SingleStatements:
    """For PostgreSQL and one thread; the connection is none of the engine's pool."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driver: psycopg.Connection[Any] | None = None
        self._used = 0.0

    def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Carry out a statement with `$1` and so on for its values; it is committed when this returns.

        The server has it as it is: the driver would look for placeholders of its own in it each time.

        Raises:
            DBAPIError: The server refuses it, or is away.
        """
        driver = self._ready()
        try:
            with psycopg.RawCursor(driver) as cursor:
                return cursor.execute(statement, values).fetchall()
        except psycopg.Error as error:
            raise self._told(error, driver, statement) from error
        finally:
            self._used = time.monotonic()

    def close(self) -> None:
        """Give the connection up; the next statement takes a new one."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _ready(self) -> psycopg.Connection[Any]:
        if self._driver is not None and not self._answers(self._driver):
            self.close()
        if self._driver is None:
            self._driver = self._connected()
        return self._driver

    def _connected(self) -> psycopg.Connection[Any]:
        conn = self._engine.connect()
        driver = conn.connection.dbapi_connection
        if not isinstance(driver, psycopg.Connection):
            raise TypeError(f"{type(driver).__name__} is no connection to PostgreSQL")
        conn.detach()
        driver.autocommit = True
        weakref.finalize(self, driver.close)
        return driver

    def _answers(self, driver: psycopg.Connection[Any]) -> bool:
        if time.monotonic() - self._used < _RESTED:
            return True
        try:
            return self._engine.dialect.do_ping(driver)  # type: ignore[arg-type]
        except psycopg.Error:
            return False

    def _told(self, error: psycopg.Error, driver: psycopg.Connection[Any], statement: str) -> DBAPIError:
        dialect = self._engine.dialect
        is_gone = dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
        if is_gone:
            self.close()
        told = DBAPIError.instance(
            statement, (), error, psycopg.Error, connection_invalidated=is_gone, dialect=dialect
        )
        if not isinstance(told, DBAPIError):
            raise TypeError(f"{type(error).__name__} is no error of the driver's")
        return told
