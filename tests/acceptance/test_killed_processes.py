"""The whole installation, with `kill -9` on any of its processes at random moments."""

from pathlib import Path

import pytest

from taskqueue.db import database
from tests.acceptance import chaos
from tests.redis_server import RedisServer


@pytest.mark.timeout(400)
def test_every_job_ends_done_once_although_the_one_process_and_the_pilots_are_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pilotage.db"
    _run(chaos.Installation(home=tmp_path, database_url=url, seed=1))


@pytest.mark.timeout(400)
def test_every_job_ends_done_once_although_service_worker_agent_and_pilots_are_killed(
    tmp_path: Path, postgres_url: str, redis_server: RedisServer
) -> None:
    _run(chaos.Installation(home=tmp_path, database_url=postgres_url, redis_url=redis_server.url, seed=2))


def _run(installation: chaos.Installation) -> None:
    installation.start()
    try:
        job_ids = chaos.torment(installation, seconds=45, every=3, rate=6)
        engine = database.connect(installation.database_url)
        chaos.wait_until_over(installation, engine, seconds=180)
        flaws = chaos.flaws(engine, job_ids)
        engine.dispose()
    finally:
        installation.stop()
    assert job_ids
    assert not flaws
