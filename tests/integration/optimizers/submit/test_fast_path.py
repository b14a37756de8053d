"""Jobs that ask what others asked before wait as soon as they are stored."""

from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql

from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from optimizers.submit import submission
from optimizers.submit.submission import Accepted
from taskqueue.db import database
from taskqueue.jobs import log
from taskqueue.jobs.jobs import Job
from taskqueue.states import JobStatus
from taskqueue.task_queues import task_queues
from tests.submitted import ANN, GRID, grid, job

TEXT = """
Executable = "run.sh";
JobName = "{name}";
Site = {{"A.B.ch", "C.D.ch"}};
CPUTime = {seconds};
Requirements = other.Memory >= 3000;
"""


def text(name: str, seconds: int = 3600) -> str:
    return TEXT.format(name=name, seconds=seconds)


@pytest.fixture
def config(engine: Engine, now: datetime) -> Configuration:
    """One in front of which the optimizers have seen a job."""
    config = grid()
    first = accept(engine, config, now, text("first"))
    assert batch.optimize(engine, config, first.due, now=now).waiting == tuple(first.job_ids)
    return config


def accept(engine: Engine, config: Configuration, now: datetime, *texts: str) -> Accepted:
    return submission.accept(engine, config, ANN, texts, now=now)


def stored(engine: Engine, job_id: int) -> Job:
    """A job without what it has for itself."""
    return replace(job(engine, job_id), job_id=0, job_name="", description_id=0)


def test_they_are_stored_as_the_optimizers_leave_them(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    by_optimizers, [alone] = 1, accept(engine, config, now, text("alone")).job_ids
    both = accept(engine, config, now, text("a"), text("b"))
    assert (both.due, list(both.passed.waiting)) == ([], both.job_ids)
    for job_id in (alone, *both.job_ids):
        assert stored(engine, job_id) == stored(engine, by_optimizers)
    with database.reading(engine) as conn:
        logs = [
            [replace(line, job_id=0) for line in log.read_log(conn, job_id)]
            for job_id in (by_optimizers, alone, *both.job_ids)
        ]
        place = stored(engine, alone).task_queue_id
        assert place is not None
        assert task_queues.list_first_jobs(conn, place, 10) == [by_optimizers, alone, *both.job_ids]
    assert logs[0] == logs[1] == logs[2] == logs[3]
    assert [job(engine, job_id).job_name for job_id in both.job_ids] == ["a", "b"]


def test_what_became_of_them_is_told_as_the_optimizers_do(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    other = accept(engine, config, now, text("a", seconds=7200))
    by_optimizers = batch.optimize(engine, config, other.due, now=now)
    again = accept(engine, config, now, text("a"), text("b"))
    assert again.passed.outcomes == {key: 2 * count for key, count in by_optimizers.outcomes.items()}


def test_others_of_the_submission_are_left_to_the_optimizers(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    names = {"a": 3600, "b": 7200, "c": 3600, "d": 7200}
    mixed = accept(engine, config, now, *(text(name, seconds) for name, seconds in names.items()))
    assert mixed.due == [mixed.job_ids[1], mixed.job_ids[3]]
    found = [job(engine, job_id) for job_id in mixed.job_ids]
    assert [each.job_name for each in found] == list(names)
    received, waiting = JobStatus.RECEIVED, JobStatus.WAITING
    assert [each.status for each in found] == [waiting, received, waiting, received]
    assert batch.optimize(engine, config, mixed.job_ids, now=now).waiting == tuple(mixed.due)


def test_of_another_configuration_nothing_is_known(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    newer = grid(GRID.replace("small: {Memory: 2000}", "small: {Memory: 3000}"), config.version + 1)
    again = accept(engine, newer, now, text("again"))
    assert again.due == again.job_ids


def test_more_than_a_batch_are_left_to_the_optimizers(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    many = accept(engine, config, now, f"{text('many')}\nParameters = {batch.MOST_AT_ONCE + 1};")
    assert len(many.due) == batch.MOST_AT_ONCE + 1


def test_no_submission_waits_for_another_that_brings_jobs_to_its_pool(
    postgres_url: str, now: datetime
) -> None:
    engine, config = database.connect(postgres_url), grid()
    first = accept(engine, config, now, text("first"))
    batch.optimize(engine, config, first.due, now=now)
    with database.writing(engine) as rival:
        assert submission.submit(rival, config, ANN, [text("slow")], now=now).due == []
        with database.writing(engine) as conn:
            conn.execute(sql("SET LOCAL lock_timeout = '1s'"))
            meanwhile = submission.submit(conn, config, ANN, [text("meanwhile")], now=now)
        assert meanwhile.due == meanwhile.job_ids
    assert accept(engine, config, now, text("after")).due == []
    assert batch.optimize(engine, config, meanwhile.due, now=now).waiting == tuple(meanwhile.job_ids)
    engine.dispose()


def test_nothing_waits_of_a_submission_that_is_rolled_back(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    with database.writing(engine) as conn:
        lost = submission.submit(conn, config, ANN, [text("lost")], now=now)
        assert lost.due == []
        conn.rollback()
    with database.reading(engine) as conn:
        place = stored(engine, 1).task_queue_id
        assert place is not None
        assert task_queues.list_first_jobs(conn, place, 10) == [1]
