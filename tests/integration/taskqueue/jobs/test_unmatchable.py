"""Stuck pools: jobs of theirs wait, and no queue is eligible."""

from datetime import datetime

import pytest
from sqlalchemy import Engine

from optimizers.chain import batch
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import unmatchable
from tests.support.factories import stored_rows, submitted_jobs
from tests.support.factories.submitted_jobs import grid, submit


def _submit(engine: Engine, now: datetime, memory: int) -> tuple[int, str]:
    """A waiting job that requires this memory, and its pool."""
    [job_id] = submit(engine, grid(), now, {"Executable": "a.sh", "Requirements": {"Memory": memory}})
    batch.optimize(engine, grid(), [job_id], now=now)
    pool_id = submitted_jobs.job(engine, job_id).submit_pool
    assert pool_id is not None
    return job_id, pool_id


@pytest.mark.parametrize("status", [JobStatus.DONE, JobStatus.KILLED, JobStatus.RUNNING])
def test_a_pool_is_stuck_while_jobs_wait_and_no_queue_is_eligible(
    engine: Engine, now: datetime, status: JobStatus
) -> None:
    _submit(engine, now, 4000)
    first, pool_id = _submit(engine, now, 9000)
    second, _ = _submit(engine, now, 9000)
    with database.writing(engine) as conn:
        stored_rows.force(conn, first, status=status.value)
        assert unmatchable.list_stuck_pools(conn, None) == {pool_id: "lhcb"}
        assert unmatchable.count_stuck_pools(conn) == {"lhcb": 1}
        stored_rows.force(conn, second, status=status.value)
        assert unmatchable.list_stuck_pools(conn, None) == {}
        assert unmatchable.count_stuck_pools(conn) == {}


def test_stuck_pools_of_other_vos_are_left_out(engine: Engine, now: datetime) -> None:
    _, pool_id = _submit(engine, now, 9000)
    with database.reading(engine) as conn:
        assert unmatchable.list_stuck_pools(conn, frozenset({"lhcb"})) == {pool_id: "lhcb"}
        assert unmatchable.list_stuck_pools(conn, frozenset({"cms"})) == {}
