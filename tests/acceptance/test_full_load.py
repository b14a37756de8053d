"""Four matcher processes, a running limit, a delay and throttles, all in motion: never one job too many."""

from pathlib import Path

import pytest

from taskqueue.db import database
from tests.acceptance import load
from tests.acceptance.load import KIND, LIMITED, MOST


@pytest.mark.timeout(300)
def test_four_matchers_under_full_load_never_give_one_job_too_many(tmp_path: Path, postgres_url: str) -> None:
    installation = load.Installation(tmp_path, postgres_url)
    engine = database.connect(postgres_url)
    try:
        installation.start()
        done = load.run(installation, engine, seconds=12, kill_every=5, seed=1, backlog=40)
    finally:
        installation.stop()
        engine.dispose()
    assert not done.flaws
    numbers = done.numbers()
    assert numbers[f"most {KIND} at {LIMITED}"] == MOST, "the limit was reached"
    assert all(numbers["matches"][site] > 10 for site in load.PILOTS)
