"""What a server answers that a failover has demoted, or that ends a session, is no defect."""

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from examples.servers.postgres import Postgres
from taskqueue.db import database, postgresql
from taskqueue.db.compiled_sql import AsyncRunner, AutocommitRunner
from tests.support import databases

_CHANGE = "DELETE FROM config_imports RETURNING file"


@pytest.fixture
def standby(replica: Postgres) -> Iterator[Engine]:
    engine = database.connect(replica.url("pilotage"), pool_size=1)
    yield engine
    engine.dispose()


def _read(engine: Engine) -> None:
    with database.reading(engine) as conn:
        conn.execute(text("SELECT 1"))


def _write(engine: Engine) -> None:
    databases.execute(engine, text(_CHANGE))


def _run_alone(engine: Engine) -> None:
    AutocommitRunner(engine).rows(_CHANGE, ())


def _run_in_loop(engine: Engine) -> None:
    async def run() -> None:
        runner = AsyncRunner(engine)
        try:
            await runner.connect()
            await runner.rows(_CHANGE, ())
        finally:
            await runner.close()

    asyncio.run(run())


@pytest.mark.parametrize("write", [_write, _run_alone, _run_in_loop])
def test_a_standby_is_away_for_those_who_write(standby: Engine, write: Callable[[Engine], None]) -> None:
    for _ in range(2):  # a connection as it was opened, and one that was used for reading
        with pytest.raises(DBAPIError) as failed:
            write(standby)
        assert database.is_unavailable(failed.value)
        assert isinstance(failed.value, database.UNAVAILABLE)
        assert database.find_store_fault(failed.value) == "it is read-only"
        _read(standby)


def test_a_standby_is_away_where_transactions_are_serializable_by_default(
    standby: Engine, primary: Postgres, replica: Postgres
) -> None:
    """Only the event loop opens its connection with the default of the role or database."""
    primary.execute("ALTER DATABASE pilotage SET default_transaction_isolation = serializable")
    try:
        replica.catch_up(primary)
        with pytest.raises(DBAPIError) as failed:
            _run_in_loop(standby)
    finally:
        primary.execute("ALTER DATABASE pilotage RESET default_transaction_isolation")
    assert getattr(failed.value.orig, "sqlstate", None) == "0A000"
    assert database.is_unavailable(failed.value)


def test_what_no_server_supports_is_a_defect(standby: Engine, primary: Postgres) -> None:
    """The same SQLSTATE, on both: 0A000."""
    engine = database.connect(primary.url("pilotage"))
    for each in (engine, standby):
        with pytest.raises(DBAPIError) as failed, database.reading(each) as conn:
            conn.execute(text("SELECT count(*) FROM jobs FOR UPDATE"))
        assert getattr(failed.value.orig, "sqlstate", None) == "0A000"
        assert not database.is_unavailable(failed.value)
        assert not isinstance(failed.value, database.UNAVAILABLE)
        assert database.find_store_fault(failed.value) is None
    engine.dispose()


def test_a_promoted_standby_takes_writes_again(standby: Engine, replica: Postgres) -> None:
    _read(standby)
    with pytest.raises(database.UNAVAILABLE):
        _write(standby)
    replica.promote()
    _write(standby)
    _run_alone(standby)


def test_a_session_that_the_server_ended_is_away(standby: Engine, replica: Postgres) -> None:
    """As of a process that was suspended in a transaction."""

    def stay_idle() -> None:
        with database.reading(standby) as conn:
            session = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
            conn.execute(text("SET idle_in_transaction_session_timeout = 1"))
            replica.wait_until(f"SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = {session})")
            conn.execute(text("SELECT 1"))

    with pytest.raises(DBAPIError) as failed:
        stay_idle()
    assert isinstance(failed.value, database.UNAVAILABLE)
    assert failed.value.connection_invalidated
    _read(standby)


def _build_error(code: str, *, connection_invalidated: bool = False) -> DBAPIError:
    error = DBAPIError.instance(
        "SELECT 1",
        (),
        psycopg.errors.lookup(code)("from the server"),
        psycopg.Error,
        connection_invalidated=connection_invalidated,
    )
    assert isinstance(error, DBAPIError)
    return postgresql.translate_unavailable(error)


@pytest.mark.parametrize(
    "code",
    [
        *("08000", "08003", "08006", "08P01", "25006", "53100", "53200", "53300"),
        *("57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030"),
    ],
)
def test_codes_of_a_server_that_starts_stops_or_is_full_mean_away(code: str) -> None:
    assert database.is_unavailable(_build_error(code))


def test_an_error_after_which_there_is_no_session_means_away() -> None:
    """For the driver an internal error: idle_in_transaction_session_timeout."""
    assert database.is_unavailable(_build_error("25P03", connection_invalidated=True))


@pytest.mark.parametrize("code", ["0A000", "22P02", "23505", "25001", "25P02", "42601", "42P01", "XX000"])
def test_codes_of_faulty_statements_do_not(code: str) -> None:
    assert not isinstance(_build_error(code), database.UNAVAILABLE)
