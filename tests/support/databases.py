"""Engines of tests, and marks of tests about the databases that they run on."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import pytest
from sqlalchemy import Engine, Executable, FromClause, event, func, select, text
from sqlalchemy.util import LRUCache

from examples.servers.postgres import TEMPLATE, Postgres
from taskqueue.db import database, postgresql

#: For modules of interface and commands whose paths differ by database: claims, pilots' reports, caches.
BOTH = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)

#: Fixture with the URL of each kind of database.
FIXTURES: Final[Mapping[str, str]] = {
    "sqlite": "sqlite_url",
    "postgres": "postgres_url",
    "postgresql": "postgres_url",
    "partitions": "partitioned_url",  # PostgreSQL with the job log in partitions
}
#: Kinds for modules about what reads or removes the job log: with it in one table and in partitions.
LAYOUTS: Final = ("sqlite", "postgresql", "partitions")
#: For tests of such a module about a log in one table.
ONE_TABLE = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)


class CompiledStatements(LRUCache[Any, Any]):
    """Compiled statements, whichever of the engines of one kind of database compiled them.

    An engine has a cache of its own, so each test would compile all of its statements again: a fifth of the
    time of a test. The first part of a key is the dialect, which is an object of each engine.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(key[1:], compiled)


_COMPILED: defaultdict[str, CompiledStatements] = defaultdict(lambda: CompiledStatements(3000))


def wait_patiently(patched: pytest.MonkeyPatch) -> None:
    """Let connections of this process wait for servers and locks, however slow the machine is."""
    limits = dict.fromkeys(postgresql.LIMITS, "300s")
    patched.setattr(postgresql, "SET_LIMITS", postgresql._write_settings(limits))
    patched.setitem(postgresql._CONNECT, "connect_timeout", "300")
    set_defaults(patched, database.connect, pool_timeout=300.0, busy_timeout=300.0)


def set_defaults(patched: pytest.MonkeyPatch, function: Callable[..., object], **values: float) -> None:
    """Let a function have other values where callers state none."""
    whole: Any = inspect.unwrap(function)
    patched.setattr(whole, "__kwdefaults__", whole.__kwdefaults__ | values)


def connect(url: str, *, pool_size: int = 10) -> Engine:
    """An engine that takes over the statements that earlier ones compiled, and waits patiently."""
    engine = database.connect(url, pool_size=pool_size, pool_timeout=300.0, busy_timeout=300.0)
    engine.update_execution_options(compiled_cache=_COMPILED[engine.dialect.name])
    return engine


def execute(engine: Engine, statement: Executable, values: Mapping[str, object] | None = None) -> None:
    """A statement in a transaction of its own."""
    with database.writing(engine) as conn:
        conn.execute(statement, values)


def scalars(engine: Engine, query: Executable) -> list[Any]:
    """The first column of all rows."""
    with database.reading(engine) as conn:
        return list(conn.execute(query).scalars())


def scalar(engine: Engine, query: Executable) -> Any:
    """The only value."""
    [found] = scalars(engine, query)
    return found


def count(engine: Engine, table: FromClause) -> int:
    """Rows of a table."""
    return int(scalar(engine, select(func.count()).select_from(table)))


def record_statements(engine: Engine) -> list[str]:
    """The statements that an engine sends from now on; many rows for one count once."""
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    return sent


def count_lock_waits(engine: Engine) -> int:
    """Sessions of the PostgreSQL database that wait for a lock."""
    here = "wait_event_type = 'Lock' AND datname = current_database()"
    with database.reading(engine) as conn:
        return int(conn.execute(text(f"SELECT count(*) FROM pg_stat_activity WHERE {here}")).scalar_one())


@contextmanager
def run_primary(parent: Path) -> Iterator[Postgres]:
    """A server of a test's own with a migrated database `pilotage`, which replicas can follow."""
    with _running(Postgres(Path(mkdtemp(dir=parent)))) as server:
        server.execute("CREATE DATABASE pilotage")
        database.upgrade(server.url("pilotage"))
        yield server


@contextmanager
def run_replica(parent: Path, primary: Postgres) -> Iterator[Postgres]:
    """An asynchronous replica, which follows as a hot standby."""
    with _running(Postgres(Path(mkdtemp(dir=parent)), primary=primary)) as server:
        yield server


@contextmanager
def _running(server: Postgres) -> Iterator[Postgres]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def run_postgres(
    directory: Path, settings: Mapping[str, str] | None = None, *, programs: Path | None = None
) -> Iterator[Postgres]:
    """A server in a new directory, with the migrated database that those of tests are copies of."""
    directory.mkdir()
    server = Postgres(directory, settings, programs=programs)
    server.start()
    server.execute(f"CREATE DATABASE {TEMPLATE}")
    database.upgrade(server.url(TEMPLATE))
    yield server
    server.stop()
