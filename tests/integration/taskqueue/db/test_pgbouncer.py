"""Behind pgbouncer in transaction mode: what a session was told is not there for the next transaction."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Health
from taskqueue.db import database as db_database
from taskqueue.db import postgresql
from taskqueue.db.compiled_sql import AsyncRunner, AutocommitRunner
from tests.support import concurrency
from tests.support.factories import queued_jobs
from tests.support.servers.pgbouncer import SERVER_CONNECTIONS, Pgbouncer

pytestmark = pytest.mark.debian("pgbouncer")
ROOT = Path(__file__).parents[4]


@pytest.fixture
def pooled_url(pgbouncer: Pgbouncer, postgres_url: str) -> str:
    return pgbouncer.url(postgres_url)


@pytest.fixture
def pooled(pooled_url: str) -> Iterator[Engine]:
    engine = db_database.connect(pooled_url)
    yield engine
    engine.dispose()


def test_a_pooler_is_noticed_and_its_absence_too(pooled: Engine, postgres_url: str) -> None:
    direct = db_database.connect(postgres_url)
    with db_database.reading(pooled) as conn, db_database.reading(direct) as other:
        assert (postgresql.is_pooled(conn), postgresql.is_pooled(other)) == (True, False)
    direct.dispose()


def test_statements_may_be_repeated_although_each_transaction_has_another_session(pooled: Engine) -> None:
    """Prepared ones would fail: psycopg prepares what it sees for the sixth time."""

    def sessions(_number: int) -> set[int]:
        seen = set()
        for _ in range(30):
            with db_database.writing(pooled) as conn:
                seen.add(conn.execute(text("SELECT pg_backend_pid() + :zero"), {"zero": 0}).scalar_one())
        return seen

    used = set().union(*concurrency.at_once(8, sessions))
    assert 1 < len(used) <= SERVER_CONNECTIONS


def test_the_settings_of_sessions_that_others_share_are_left_alone(pooled: Engine) -> None:
    with db_database.writing(pooled) as conn:
        assert conn.execute(text("SHOW statement_timeout")).scalar_one() == "0"


def test_a_reading_transaction_through_a_pooler_leaves_no_session_read_only(pooled: Engine) -> None:
    for _ in range(2 * SERVER_CONNECTIONS):
        with db_database.reading(pooled) as conn:
            assert conn.execute(text("SHOW transaction_read_only")).scalar_one() == "on"
        with db_database.writing(pooled) as conn:
            assert conn.execute(text("SHOW transaction_read_only")).scalar_one() == "off"


def test_pilots_of_several_processes_drain_everything_once(
    pooled: Engine, pooled_url: str, now: datetime
) -> None:
    with db_database.writing(pooled) as conn:
        asked = [replace(queued_jobs.EVERYWHERE, cpu_time=1000 + number) for number in range(20)]
        ids = [job_id for each in asked for job_id in queued_jobs.put(conn, now, 20, asked=each)]
    command = [sys.executable, "-m", "tests.support.scripts.drain_jobs", pooled_url, "8", "2"]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    taken = Counter(job_id for output in outputs for job_id in json.loads(output))
    assert (set(taken), max(taken.values())) == (set(ids), 1)


def test_the_schema_is_upgraded_through_a_pooler_by_many_at_once(
    pgbouncer: Pgbouncer, postgres_url: str
) -> None:
    engine = db_database.connect(postgres_url)
    with db_database.writing(engine) as conn:
        conn.execute(text("DROP SCHEMA public CASCADE"))
        conn.execute(text("CREATE SCHEMA public"))
    concurrency.at_once(4, lambda _: db_database.upgrade(pgbouncer.url(postgres_url)))
    assert db_database.schema_state(engine).is_current
    engine.dispose()


def test_a_pooler_that_was_restarted_costs_no_request_an_error(pgbouncer: Pgbouncer, pooled: Engine) -> None:
    with db_database.reading(pooled) as conn:
        conn.execute(text("SELECT 1"))
    pgbouncer.stop()
    try:
        with pytest.raises(db_database.UNAVAILABLE), db_database.reading(pooled):
            pass
    finally:
        pgbouncer.start()
    with db_database.reading(pooled) as conn:
        assert postgresql.is_pooled(conn)


def test_the_doctor_names_what_a_pooled_database_lacks(
    pooled_url: str, postgres_url: str, tmp_path: Path, now: datetime
) -> None:
    def found(direct: str | None) -> dict[str, Health]:
        flags = {"home": tmp_path, "database_url": pooled_url, "database_direct_url": direct}
        chosen = settings.load(flags, {})
        return {each.subject: each.health for each in doctor.check_database(chosen, now)}

    direct_engine = db_database.connect(postgres_url)
    with db_database.writing(direct_engine) as conn:
        name = conn.execute(text("SELECT current_database()")).scalar_one()
        conn.execute(text(f"ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'"))
    direct_engine.dispose()
    alone = found(None)
    assert {alone[name] for name in (*postgresql.LIMITS, "TimeZone")} == {Health.WARNING}
    assert "jit" not in alone, "this server was built without LLVM"
    assert alone["direct database URL"] is Health.WARNING
    assert found(postgres_url)["direct database URL"] is Health.GOOD
    assert found(pooled_url)["direct database URL"] is Health.BAD


def test_each_statement_is_read_committed_although_the_database_has_another_default(
    pooled: Engine, postgres_url: str
) -> None:
    direct = db_database.connect(postgres_url)
    with db_database.writing(direct) as conn:
        name = conn.execute(text("SELECT current_database()")).scalar_one()
        conn.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable"))
    direct.dispose()

    async def show(engine: Engine) -> object:
        runner = AsyncRunner(engine)
        await runner.connect()
        try:
            return await runner.rows("SHOW transaction_isolation", ())
        finally:
            await runner.close()

    for engine in (pooled, direct):
        with db_database.writing(engine) as conn:
            assert conn.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
        for _ in range(2 * SERVER_CONNECTIONS):
            assert AutocommitRunner(engine).rows("SHOW transaction_isolation", ()) == [("read committed",)]
        assert asyncio.run(show(engine)) == [("read committed",)]
        engine.dispose()
