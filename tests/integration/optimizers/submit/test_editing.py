"""Edits of waiting jobs beside claims: one gets the old description or the new one, never a mixture."""

import json
from datetime import datetime

from sqlalchemy import Engine

from optimizers.chain import batch
from optimizers.submit import editing
from optimizers.submit.editing import EditResult
from requirements.states import JobStatus
from tests.support import concurrency
from tests.support.factories.submitted_jobs import claim, grid, job, submit, waiting

JOB = {"Executable": "a.sh", "Requirements": {"Memory": 2000}}


def wait_in_queue(engine: Engine, now: datetime) -> int:
    [job_id] = submit(engine, grid(), now, JOB)
    batch.optimize(engine, grid(), [job_id], now=now)
    return job_id


def edit(engine: Engine, job_id: int, now: datetime) -> EditResult:
    found = job(engine, job_id)
    return editing.edit(engine, grid(), [found], {"Memory": 1000}, source="JobManager, ann", now=now)


def test_an_edit_that_comes_during_a_claim_changes_nothing(engine: Engine, now: datetime) -> None:
    job_id = wait_in_queue(engine, now)
    result = concurrency.meanwhile(engine, lambda conn: claim(conn, now), lambda: edit(engine, job_id, now))
    assert (result.done, result.taken) == ([], [job_id])
    assert job(engine, job_id).status is JobStatus.MATCHED


def test_after_an_edit_no_claim_gets_the_old_description(engine: Engine, now: datetime) -> None:
    job_id = wait_in_queue(engine, now)
    before = job(engine, job_id)
    assert edit(engine, job_id, now).done == [job_id]
    assert waiting(engine) == []
    assert claim(engine, now) == []
    batch.optimize(engine, grid(), [job_id], now=now)
    after = job(engine, job_id)
    assert (after.status, after.submit_pool != before.submit_pool) == (JobStatus.WAITING, True)
    [given] = claim(engine, now)
    assert json.loads(given.description_json)["Requirements"] == {"Memory": 1000}


def test_of_two_edits_at_once_the_second_is_told(engine: Engine, now: datetime) -> None:
    job_id = wait_in_queue(engine, now)
    found = job(engine, job_id)
    stale = editing.plan(engine, grid(), [found], {"Memory": 1000})
    assert edit(engine, job_id, now).done == [job_id]
    assert editing.store(engine, stale, source="JobManager, ann", now=now).taken == [job_id]
