"""Connections and transactions: what the two databases must do, and the traps of SQLite."""

import asyncio
import gc
import multiprocessing
import os
import sqlite3
import threading
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from examples.servers.postgres import Postgres
from taskqueue.db import compiled_sql, database, postgresql, sql
from taskqueue.db.compiled_sql import AsyncRunner, AutocommitRunner
from taskqueue.schema.tables import jobs
from tests.support import concurrency, databases
from tests.support.factories import stored_rows


def _count(engine: Engine) -> int:
    return int(databases.scalar(engine, text("SELECT count(*) FROM config_imports")))


def _put(conn: object, name: str) -> None:
    conn.execute(text("INSERT INTO config_imports VALUES (:f, 'd', 0)"), {"f": name})  # type: ignore[attr-defined]


def test_what_is_written_is_there_after_the_transaction(engine: Engine) -> None:
    with database.writing(engine) as conn:
        _put(conn, "a")
        assert _count(engine) == 0
    assert _count(engine) == 1


def test_a_transaction_in_which_something_is_raised_changes_nothing(engine: Engine) -> None:
    def fail() -> None:
        with database.writing(engine) as conn:
            _put(conn, "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert _count(engine) == 0
    with database.writing(engine) as conn:  # and the turn to write was given back
        _put(conn, "b")


def test_foreign_keys_hold(engine: Engine) -> None:
    with pytest.raises(IntegrityError), database.writing(engine) as conn:
        conn.execute(text("INSERT INTO waiting_jobs VALUES (1, 1, 1.0)"))


def test_who_reads_first_and_writes_later_does_not_fail_when_others_write(database_url: str) -> None:
    """The trap of SQLite: the second such writer in a deferred transaction fails at once."""
    read = "SELECT version FROM config_imports"
    if database_url.startswith("postgresql"):
        read += " FOR UPDATE"
    # An engine each, as processes have: within one, writers queue up before SQLite sees them.
    engines = [database.connect(database_url, pool_size=1) for _ in range(4)]
    with database.writing(engines[0]) as conn:
        _put(conn, "counter")

    def increment(number: int) -> None:
        for _round in range(20):
            with database.writing(engines[number]) as conn:
                seen = conn.execute(text(read)).scalar_one()
                conn.execute(text("UPDATE config_imports SET version = :v"), {"v": seen + 1})

    concurrency.at_once(4, increment)
    assert databases.scalar(engines[0], text("SELECT version FROM config_imports")) == 80
    for engine in engines:
        engine.dispose()


def test_a_deferred_transaction_would_fail_there(sqlite_url: str) -> None:
    """What `writing` is for, shown on SQLite itself: no busy time-out helps a snapshot that is old."""
    engine = database.connect(sqlite_url, busy_timeout=30)
    with database.reading(engine) as conn:  # deferred, and on SQLite nothing keeps it from writing
        conn.execute(text("SELECT count(*) FROM config_imports")).scalar_one()
        _write_once(engine)
        with pytest.raises(database.UNAVAILABLE, match="locked"):
            _put(conn, "late")
    engine.dispose()


def test_readers_go_on_while_someone_writes(engine: Engine) -> None:
    with database.writing(engine) as conn:
        _put(conn, "a")
        assert concurrency.at_once(4, lambda _: _count(engine)) == [0, 0, 0, 0]


def test_a_reading_transaction_cannot_write_on_postgresql(postgres_url: str) -> None:
    engine = database.connect(postgres_url)
    with pytest.raises(DBAPIError, match="read-only"), database.reading(engine) as conn:
        _put(conn, "a")
    with database.writing(engine) as conn:  # the same connection writes again
        _put(conn, "a")
    engine.dispose()


class _RefusedConnection(sqlite3.Connection):
    """As beside others that begin with the same new file at that moment."""

    refusals = 2

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if "= WAL" in statement and self.refusals:
            self.refusals -= 1
            refused = sqlite3.OperationalError("database is locked")
            refused.sqlite_errorname = "SQLITE_BUSY"
            raise refused
        return super().execute(statement, *values)


def test_a_new_file_that_others_begin_with_at_once_is_waited_for(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "new.db", timeout=300, factory=_RefusedConnection)) as connection:
        database._begin_wal(connection)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_postgresql_is_read_committed_and_does_not_wait_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "SET_LIMITS", postgresql._write_settings(postgresql.LIMITS))
    engine = database.connect(postgres_url)
    with database.writing(engine) as conn:
        shown = {
            name: conn.execute(text(f"SHOW {name}")).scalar_one()
            for name in (
                "transaction_isolation",
                "statement_timeout",
                "lock_timeout",
                "idle_in_transaction_session_timeout",
                "synchronous_commit",
                "jit",
                "max_parallel_workers_per_gather",
            )
        }
    engine.dispose()
    assert shown == {
        "transaction_isolation": "read committed",
        "statement_timeout": "30s",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "1min",
        "synchronous_commit": "on",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
    }


def test_settings_of_a_server_or_role_do_not_change_answers(postgres_url: str, now: datetime) -> None:
    theirs = "-c%20TimeZone%3DAsia/Kolkata%20-c%20DateStyle%3DGerman%20-c%20jit%3Don"
    engine = database.connect(f"{postgres_url}&options={theirs}")
    names = "current_setting('TimeZone'), current_setting('DateStyle'), current_setting('jit')"

    async def read() -> object:
        runner = AsyncRunner(engine)
        await runner.connect()
        try:
            return await runner.rows(f"SELECT {names}", ())
        finally:
            await runner.close()

    expected = ("UTC", "ISO, DMY", "off")
    assert AutocommitRunner(engine).rows(f"SELECT {names}", ()) == [expected]
    assert asyncio.run(read()) == [expected]
    with database.reading(engine) as conn:
        read_back = conn.execute(text("SELECT CAST(:now AS timestamptz)"), {"now": now}).scalar_one()
    assert read_back.isoformat() == now.isoformat()
    engine.dispose()


def test_a_sqlite_that_lacks_what_statements_need_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(ValueError, match=r"SQLite 3\.34\.1 of this Python is too old, 3\.35 is the oldest"):
        database.connect(f"sqlite:///{tmp_path}/pilotage.db")


def test_a_connection_of_ones_own_is_closed_if_it_cannot_be_prepared(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.connect(postgres_url)
    monkeypatch.setattr(compiled_sql, "_PLAN_SETTINGS", 5)
    with pytest.raises(Exception, match="int") as caught:
        AutocommitRunner(engine).rows("SELECT 1", ())
    assert not isinstance(caught.value, DBAPIError)
    del caught
    gc.collect()  # a connection that is open would be warned of
    engine.dispose()


def test_a_server_that_goes_while_a_connection_of_ones_own_is_prepared_leaves_no_traceback(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = database.connect(postgres_url)
    monkeypatch.setattr(compiled_sql, "_PLAN_SETTINGS", "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(OperationalError):
        AutocommitRunner(engine).rows("SELECT 1", ())
    assert not caplog.records
    engine.dispose()


def test_what_the_url_says_of_a_connection_goes_before_our_settings(postgres_url: str) -> None:
    engine = database.connect(f"{postgres_url}&application_name=mine&options=-c%20statement_timeout%3D5s")
    with database.reading(engine) as conn:
        assert conn.execute(text("SHOW statement_timeout")).scalar_one() == "5s"
        assert conn.execute(text("SHOW application_name")).scalar_one() == "mine"
    engine.dispose()


def test_every_connection_to_sqlite_is_durable(sqlite_url: str) -> None:
    engine = database.connect(sqlite_url, pool_size=3, busy_timeout=database.BUSY_TIMEOUT)
    with engine.connect() as first, engine.connect() as second, engine.connect() as third:
        for conn in (first, second, third):
            settings = [
                conn.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
            assert settings == ["wal", 2, 1, 30_000]  # 2 is FULL
            conn.rollback()
    engine.dispose()


def test_another_process_that_writes_to_sqlite_is_waited_for(sqlite_url: str) -> None:
    engine = database.connect(sqlite_url)
    other = sqlite3.connect(
        sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
    )
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.execute, ["COMMIT"])
    timer.start()
    with database.writing(engine) as conn:
        _put(conn, "a")
    timer.join()
    other.close()
    engine.dispose()


def test_a_sqlite_that_stays_locked_is_unavailable(sqlite_url: str) -> None:
    engine = database.connect(sqlite_url, busy_timeout=0.1)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(database.UNAVAILABLE), database.writing(engine) as conn:
        _put(conn, "a")
    other.close()
    with pytest.raises(database.UNAVAILABLE), database.writing(engine):
        concurrency.at_once(1, lambda _: _write_once(engine))
    engine.dispose()


def _write_once(engine: Engine) -> None:
    with database.writing(engine) as conn:
        _put(conn, "x")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y"])
def test_a_database_that_cannot_do_it_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///<file>"):
        database.connect(url)


@pytest.mark.parametrize("prefix", ["postgresql://", "postgresql+psycopg://"])
def test_any_postgresql_url_is_for_psycopg(prefix: str) -> None:
    engine = database.connect(f"{prefix}host.example.org/pilotage")
    assert engine.dialect.driver == "psycopg"


def test_a_database_that_is_away_is_unavailable(tmp_path: Path) -> None:
    engine = database.connect(f"postgresql:///pilotage?host={tmp_path}")
    with pytest.raises(database.UNAVAILABLE), database.writing(engine):
        pass


def test_a_server_that_was_restarted_costs_no_request_an_error(postgres: Postgres, postgres_url: str) -> None:
    engine = database.connect(postgres_url)
    _write_once(engine)
    postgres.kill()
    try:
        with pytest.raises(database.UNAVAILABLE), database.writing(engine):
            pass
    finally:
        postgres.start()
    assert _count(engine) == 1  # and what was committed before the power went is there
    engine.dispose()


def _child(engine: Engine, answer: "multiprocessing.SimpleQueue[tuple[int, bool]]") -> None:
    _write_once(engine)
    with engine.connect() as conn:
        is_own = conn.info["pid"] == os.getpid()
    answer.put((_count(engine), is_own))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process with threads, which pytest has
def test_a_child_does_not_speak_over_the_connections_of_its_parent(engine: Engine) -> None:
    assert _count(engine) == 0
    fork = multiprocessing.get_context("fork")
    answer: multiprocessing.SimpleQueue[tuple[int, bool]] = fork.SimpleQueue()
    child = fork.Process(target=_child, args=(engine, answer))
    child.start()
    assert answer.get() == (1, True)
    child.join()
    assert child.exitcode == 0
    assert _count(engine) == 1


def test_a_database_that_stores_nothing_is_recognised(engine: Engine) -> None:
    """Read-only on both; a full disk is a file that may not grow on SQLite."""

    def put_after(setting: str, name: str) -> None:
        with database.writing(engine) as conn:
            conn.execute(text(setting))
            _put(conn, name)

    is_sqlite = engine.dialect.name == "sqlite"
    with pytest.raises(OperationalError) as read_only:
        put_after("PRAGMA query_only = ON" if is_sqlite else "SET TRANSACTION READ ONLY", "secret")
    assert database.is_unavailable(read_only.value)
    assert database.find_store_fault(read_only.value) == "it is read-only"
    assert "secret" not in str(read_only.value)
    engine.dispose()
    if is_sqlite:
        with pytest.raises(OperationalError) as full:
            put_after("PRAGMA max_page_count = 1", "x" * 1_000_000)
        assert database.find_store_fault(full.value) == "its disk is full"
        engine.dispose()
    with database.writing(engine) as conn:
        _put(conn, "a")


def test_errors_of_statements_hide_their_values(engine: Engine) -> None:
    with pytest.raises(DBAPIError) as failed, database.writing(engine) as conn:
        conn.execute(text("INSERT INTO nowhere VALUES (:lease)"), {"lease": "secret"})
    assert "secret" not in str(failed.value)
    assert database.find_store_fault(failed.value) is None


def test_ids_of_jobs_begin_where_they_shall_and_never_go_back(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        sql.raise_ids(conn, jobs, 2_000_000_000)
        assert stored_rows.job_ids(conn, now, 2) == [2_000_000_000, 2_000_000_001]
        sql.raise_ids(conn, jobs, 5)
        assert stored_rows.job_ids(conn, now) == [2_000_000_002]
    with database.writing(engine) as conn:
        sql.raise_ids(conn, jobs, 3_000_000_000)
        assert stored_rows.job_ids(conn, now) == [3_000_000_000]
