"""The whole installation on a PostgreSQL behind pgbouncer: service, worker, agents and pilots."""

from pathlib import Path

import pytest

from taskqueue.db import database
from tests.acceptance import chaos
from tests.pgbouncer import Pgbouncer
from tests.redis_server import RedisServer


@pytest.mark.debian("pgbouncer")
def test_every_job_ends_done_once_through_a_pooler(
    tmp_path: Path, pgbouncer: Pgbouncer, postgres_url: str, redis_server: RedisServer
) -> None:
    pooled = pgbouncer.url(postgres_url)
    installation = chaos.Installation(
        home=tmp_path, database_url=pooled, redis_url=redis_server.url, pilots=1
    )
    installation.env["PILOTAGE_DATABASE_DIRECT_URL"] = postgres_url
    engine = database.connect(postgres_url)
    try:
        installation.start()
        job_ids = chaos.torment(installation, seconds=1, every=1000, rate=40)
        chaos.wait_until_over(installation, engine, seconds=120)
        flaws = chaos.flaws(engine, job_ids)
    finally:
        installation.stop()
        engine.dispose()
    assert len(job_ids) >= 20
    assert not flaws
