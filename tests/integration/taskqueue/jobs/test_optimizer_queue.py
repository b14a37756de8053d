"""Jobs that are due for the optimizers: of two workers that read one, only the first decides it."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import optimizer_queue
from taskqueue.sites import scopes
from tests.support.factories import stored_rows

#: Milliseconds after which a transaction that waits fails, where none may wait.
_NEVER = 30_000


def _put(engine: Engine, now: datetime) -> int:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, JobStatus.RECEIVED)
        stored_rows.force(conn, job_id, due_at=now)
    return job_id


@pytest.mark.parametrize(
    ("changed", "is_free"),
    [
        ({"priority": 3.0}, True),
        ({"status": JobStatus.CHECKING.value}, False),
        ({"due_at": timedelta(minutes=-1)}, False),
        ({"reschedules": 1}, False),
    ],
)
def test_a_job_that_has_changed_since_it_was_read_is_left_to_the_next_reading(
    postgresql: Engine, now: datetime, changed: dict[str, object], *, is_free: bool
) -> None:
    job_id = _put(postgresql, now)
    with database.reading(postgresql) as conn:
        read = optimizer_queue.read_due(conn, [job_id], now=now)
    values = {name: now + new if isinstance(new, timedelta) else new for name, new in changed.items()}
    with database.writing(postgresql) as conn:
        stored_rows.force(conn, job_id, **values)
    with database.writing(postgresql) as conn:
        assert optimizer_queue.lock_due(conn, read, now=now) == (read if is_free else [])
        again = optimizer_queue.read_due(conn, [job_id], now=now)
        assert optimizer_queue.lock_due(conn, again, now=now) == again != []


def test_a_job_that_another_worker_decides_is_passed_over(postgresql: Engine, now: datetime) -> None:
    held, free = (_put(postgresql, now) for _ in range(2))
    with database.writing(postgresql) as other, database.writing(postgresql) as conn:
        read = optimizer_queue.read_due(conn, [held, free], now=now)
        assert optimizer_queue.lock_due(other, read[:1], now=now) == read[:1]
        scopes.limit_wait(conn, milliseconds=_NEVER)
        assert optimizer_queue.lock_due(conn, read, now=now) == read[1:]
