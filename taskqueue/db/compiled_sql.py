"""Statements compiled once to PostgreSQL text and executed directly by the driver, for the hot paths.

They are data-changing WITHs that need one round trip: each part sees the rows returned by earlier parts, and
all parts see one snapshot. Bypassing SQLAlchemy and the driver's placeholders saves the time of parsing the
text and wrapping each row. Driver errors are raised as SQLAlchemy's, so that callers handle one kind.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import (
    JSON,
    ColumnElement,
    CompoundSelect,
    Connection,
    Dialect,
    Engine,
    FromClause,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    event,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from taskqueue.db import database
from taskqueue.db import postgresql as postgresql_settings

try:
    import psycopg
except ModuleNotFoundError:  # an optional package: without it, no engine is one of PostgreSQL
    psycopg = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStatement:
    """A statement in PostgreSQL syntax, with constants written out for the planner."""

    text: str
    names: tuple[str, ...]  #: of the parameters $1, $2, …

    def values(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Parameter values in the order of `names`."""
        return tuple(named[name] for name in self.names)


def compile_statement(statement: Select[Any] | CompoundSelect[Any], *parameters: str) -> CompiledStatement:
    """Compile a statement with these parameters, and `now` if it is used."""
    done = statement.compile(dialect=postgresql.psycopg.dialect())  # type: ignore[no-untyped-call]
    constants = {name: _quote(value) for name, value in done.params.items() if value is not None}
    names = tuple(name for name in (*parameters, "now") if name in done.params)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return CompiledStatement(text=str(done) % {**constants, **numbers}, names=names)


def unnest_json(parameter: str, columns: Mapping[str, Any], *, name: str) -> FromClause:
    """A JSON list of objects as a table: one value, so that the statement is the same for any number."""
    return (
        func.json_to_recordset(cast(bindparam(parameter, type_=Text), JSON))
        .table_valued(*(column(each, type_) for each, type_ in columns.items()), name=name)
        .render_derived(with_types=True)
    )


def insert_each(table: Table, source: FromClause, row: Mapping[str, ColumnElement[Any]]) -> postgresql.Insert:
    """Insert a row for each row of `source`, with SQLAlchemy's column defaults."""
    defaults = {
        each.name: literal(each.default.arg)
        for each in table.c
        if each.name not in row and isinstance(each.default, ScalarElementColumnDefault)
    }
    whole = {**row, **defaults}
    rows = select(*whole.values()).select_from(source)
    return postgresql.insert(table).from_select(list(whole), rows, include_defaults=False)


def _quote(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


#: To plan a claim costs more than to run it. So its plan is made once, maybe while the tables are empty.
_PLAN_SETTINGS = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off"
Rows = list[tuple[Any, ...]]
_Driver: TypeAlias = "psycopg.Connection[Any]"


class AutocommitRunner:
    """Runs each statement as a transaction of its own; for one thread.

    The connection is not part of the engine's pool: it is kept, so that no checkout is needed between two
    statements. It is closed when the engine is disposed of. A forked child opens its own connection and does
    not touch its parent's.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        close = weakref.WeakMethod(self.close)
        event.listen(engine, "engine_disposed", lambda _: (alive := close()) and alive())
        self._driver: _Driver | None = None
        self._closing: weakref.finalize[[], AutocommitRunner] | None = None
        self._used = 0.0
        self._process = 0  # that opened the connection
        self._is_pooled = False

    def rows(self, statement: str, values: Sequence[object]) -> Rows:
        """Execute a statement and commit; its rows. `CommitsLost` as by `database.writing`."""
        database.require_history(self._engine)
        driver = self._get_driver()
        try:
            return _run(self._engine.dialect, driver, statement, values, begins=self._is_pooled)
        except DBAPIError as error:
            if error.connection_invalidated:
                self.close()
            raise
        finally:
            self._used = time.monotonic()

    def close(self) -> None:
        """Close the connection; the next statement opens a new one."""
        if self._closing is not None:
            self._closing()
        self._driver = self._closing = None

    def _get_driver(self) -> _Driver:
        if self._driver is not None and (self._process != os.getpid() or not self._is_alive(self._driver)):
            self.close()
        if self._driver is None:
            self._driver = self._connect()
        return self._driver

    def _connect(self) -> _Driver:
        conn = self._engine.connect()
        driver = _get_driver(conn)
        try:
            self._is_pooled = postgresql_settings.is_pooled(conn)
            conn.detach()
            driver.autocommit = True
            if not self._is_pooled:
                driver.execute(_PLAN_SETTINGS)
        except BaseException as error:
            conn.invalidate()  # without the rollback of `close`, which fails if the server has gone
            driver.close()
            if isinstance(error, psycopg.Error):
                raise _translate(self._engine.dialect, driver, _PLAN_SETTINGS, error) from error
            raise
        self._process = os.getpid()
        self._closing = weakref.finalize(self, partial(_close, driver, self._process))
        return driver

    def _is_alive(self, driver: _Driver) -> bool:
        if not postgresql_settings.requires_ping(driver, time.monotonic() - self._used):
            return True
        try:
            return self._engine.dialect.do_ping(driver)  # type: ignore[arg-type]
        except psycopg.Error:
            return False


class AsyncRunner:
    """Runs each statement as a transaction of its own in the event loop; one at a time.

    The connection is opened by the first statement and again after a failure. It is not part of the engine's
    pool, whose URL and dialect it uses.
    Through a pooler, where the next transaction may run in another session, nothing is prepared or set.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driver: psycopg.AsyncConnection[Any] | None = None
        self._is_pooled = False
        self._used = 0.0

    async def connect(self) -> None:
        """Open the connection, unless it is open and the server answers; `DBAPIError` if it is away."""
        try:
            if self._driver is not None and postgresql_settings.requires_ping(
                self._driver, time.monotonic() - self._used
            ):
                try:
                    await self._driver.execute("SELECT 1")
                except psycopg.Error:
                    await self.close()
            if self._driver is None:
                self._driver = await self._open()
        except psycopg.Error as error:
            raise _translate(self._engine.dialect, None, "", error) from error

    async def rows(self, statement: str, values: Sequence[object]) -> Rows:
        """Execute a statement and commit; its rows. Call `connect` before."""
        driver = self._driver
        if driver is None:
            raise TypeError("a statement needs an open connection")
        database.require_history(self._engine)
        try:
            begin = driver.transaction() if self._is_pooled else nullcontext()
            async with begin, psycopg.AsyncRawCursor(driver) as cursor:
                await cursor.execute(statement, values, prepare=not self._is_pooled)
                return await cursor.fetchall()
        except psycopg.Error as error:
            translated = _translate(self._engine.dialect, driver, statement, error)
            if translated.connection_invalidated:
                await self.close()
            raise translated from error
        finally:
            self._used = time.monotonic()

    async def close(self) -> None:
        """Close the connection."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        url = self._engine.url
        _, settings = self._engine.dialect.create_connect_args(url)
        driver = await psycopg.AsyncConnection.connect(**settings, autocommit=True)
        try:
            cursor = await driver.execute(postgresql_settings.READ_PROCESS)
            answer = await cursor.fetchone()
            begin = postgresql_settings.begin_session(driver, answer and answer[0], url)
            self._is_pooled = not begin
            if self._is_pooled:
                await driver.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            for each in (*begin, _PLAN_SETTINGS) if begin else ():
                await driver.execute(each)
        except BaseException:
            await driver.close()
            raise
        return driver


def _close(driver: _Driver, process: int) -> None:
    # A forked child would end its parent's session.
    if os.getpid() == process:
        driver.close()


def _get_driver(conn: Connection) -> _Driver:
    driver = conn.connection.dbapi_connection
    if not isinstance(driver, psycopg.Connection):
        raise TypeError(f"{type(driver).__name__} is not a connection to PostgreSQL")
    return driver


def _run(
    dialect: Dialect, driver: _Driver, statement: str, values: Sequence[object], *, begins: bool = False
) -> Rows:
    """Execute a statement; `begins`: in a transaction of its own, with the isolation of the connection."""
    is_prepared = driver.prepare_threshold is not None  # not through a pooler
    try:
        with driver.transaction() if begins else nullcontext(), psycopg.RawCursor(driver) as cursor:
            return cursor.execute(statement, values, prepare=is_prepared).fetchall()
    except psycopg.Error as error:
        raise _translate(dialect, driver, statement, error) from error


def _translate(
    dialect: Dialect,
    driver: _Driver | psycopg.AsyncConnection[Any] | None,
    statement: str,
    error: psycopg.Error,
) -> DBAPIError:
    """The driver's error as SQLAlchemy's; `driver` None: there is no connection."""
    is_gone = driver is None or dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
    translated = DBAPIError.instance(
        statement, (), error, psycopg.Error, connection_invalidated=is_gone, dialect=dialect
    )
    if not isinstance(translated, DBAPIError):
        raise translated
    return postgresql_settings.translate_unavailable(translated)
