"""A year of finished jobs slows nothing: a job's way reads no more pages beside many than beside few."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.servers.postgres import Postgres
from taskqueue.db import database
from tests.support import large_database
from tests.support.large_database import CLASSES, Read

WAITING = 2_000
FEW, MANY = 1_000, 20_000
#: An index of many has a level more; reading what is over would take hundreds of times as many.
LEVELS = 1.6


def _way_of_jobs(postgres: Postgres, directory: Path, finished: int) -> tuple[Mapping[str, Read], ...]:
    """What was read for the jobs' ways and for what people ask of them, and for a cycle of each agent."""
    with postgres.fresh() as url:
        engine = database.connect(url)
        large_database.fill(engine, directory, waiting=WAITING, finished=finished)
        filled = large_database.read(postgres, engine)
        with large_database.service_on(engine, directory) as service:
            large_database.look(service, large_database.live(service, CLASSES)[0])
        lived = large_database.read(postgres, engine)
        with large_database.service_on(engine, directory) as service:
            large_database.agents(service)
        cared = large_database.read(postgres, engine)
        engine.dispose()
    return large_database.spent(filled, lived), large_database.spent(lived, cared)


@pytest.fixture(scope="module")
def ways(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[int, tuple[Mapping[str, Read], ...]]:
    directory = tmp_path_factory.mktemp("history")
    return {finished: _way_of_jobs(postgres, directory, finished) for finished in (FEW, MANY)}


Ways = Mapping[int, tuple[Mapping[str, Read], ...]]


@pytest.mark.parametrize("table", [*large_database.HISTORY, "waiting_jobs"])
def test_the_way_of_a_job_reads_no_more_pages_beside_many_that_are_over(ways: Ways, table: str) -> None:
    few, many = ways[FEW][0][table].pages, ways[MANY][0][table].pages
    assert many < LEVELS * few + 200, f"{many} pages beside {MANY}, {few} beside {FEW}"


@pytest.mark.parametrize("table", ["jobs", "job_log", "attempts", "job_waits"])
def test_the_way_of_a_job_reads_no_table_whole_that_grows(ways: Ways, table: str) -> None:
    assert ways[MANY][0][table].whole == 0


@pytest.mark.parametrize("table", ["jobs", "job_log", "attempts"])
def test_agents_that_have_just_started_read_no_table_whole_that_grows(ways: Ways, table: str) -> None:
    assert ways[MANY][1][table].whole == 0


def test_a_heartbeat_tells_no_index_of_it(ways: Ways) -> None:
    assert ways[MANY][0]["attempts"].in_place >= CLASSES
