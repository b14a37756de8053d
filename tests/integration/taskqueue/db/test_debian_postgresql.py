"""PostgreSQL as Debian packages it: an older version, with JIT compilation on by default."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine

from examples.servers.postgres import Postgres
from matcher.request.match_request import MatchCaller
from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Health
from taskqueue.db import database
from tests import debian
from tests.support import databases
from tests.support.claimers import claiming, run
from tests.support.factories import queued_jobs
from tests.support.servers.pgbouncer import Pgbouncer

pytestmark = pytest.mark.debian("postgresql")


@pytest.fixture(scope="module")
def server(short_directory: Path) -> Iterator[Postgres]:
    # Compiled whatever they cost, and counted.
    settings = {"jit_above_cost": "0", "shared_preload_libraries": "pg_stat_statements"}
    directory, programs = short_directory / "debian_pg", debian.find_postgresql()
    with databases.run_postgres(directory, settings, programs=programs) as server:
        yield server


@pytest.fixture
def engine(server: Postgres) -> Iterator[Engine]:
    with server.fresh() as url:
        engine = database.connect(url)
        yield engine
        engine.dispose()


#: Statements of this database on its tables: what the driver asks for before our settings is not ours.
_COMPILED = """
    SELECT query FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid
    WHERE datname = current_database() AND jit_functions > 0 AND query LIKE '%jobs%'
"""


def _list_compiled(server: Postgres, engine: Engine) -> list[str]:
    with psycopg.connect(host=str(server.directory), user="postgres", dbname=engine.url.database) as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return [query for (query,) in conn.execute(_COMPILED)]


def test_jobs_are_handed_out_and_no_statement_is_compiled(
    server: Postgres, engine: Engine, now: datetime
) -> None:
    job_ids = queued_jobs.put(engine, now, 40)
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:

        async def ask() -> list[int]:
            answers = [
                await process.ask(
                    queued_jobs.request(
                        caller=MatchCaller(subject=f"pilot{number}", vos=frozenset({"lhcb"})),
                        count=count,
                        **queued_jobs.at(queued_jobs.LONG),
                    )
                )
                for number, count in enumerate([1] * 20 + [20])
            ]
            return [match.job_id for answer in answers for match in answer.matches]

        taken = run(ask, process)
        assert process.in_loop > 0  # the others by the claim thread
    assert sorted(taken) == sorted(job_ids)
    assert _list_compiled(server, engine) == []


@pytest.mark.debian("pgbouncer")
def test_the_doctor_warns_of_compilation_behind_a_pooler(
    server: Postgres, engine: Engine, tmp_path: Path, now: datetime
) -> None:
    pooler = Pgbouncer(server)
    pooler.start()
    try:
        url = pooler.url(engine.url.render_as_string(hide_password=False))
        chosen = settings.load({"home": tmp_path, "database_url": url}, {})
        [found] = [each for each in doctor.check_database(chosen, now) if each.subject == "jit"]
    finally:
        pooler.stop()
    assert (found.health, found.message.endswith("SET jit = 'off'")) == (Health.WARNING, True)


def test_this_server_compiles_the_statements_of_others(server: Postgres, engine: Engine) -> None:
    statement = "SELECT count(*) FROM jobs"
    with psycopg.connect(host=str(server.directory), user="postgres", dbname=engine.url.database) as conn:
        conn.execute(statement)
    assert _list_compiled(server, engine) == [statement]
