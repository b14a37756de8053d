"""All rows of a job are locked in one order, also those that come while its locks are waited for."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, delete, event, insert, select, update

from taskqueue.db import database
from taskqueue.jobs import transitions
from taskqueue.schema.tables import attempts, jobs, waiting_jobs
from tests.support.factories import queued_jobs, stored_rows


def wait_again(conn: Connection, job_id: int, now: datetime) -> Callable[[Connection], object]:
    [row] = conn.execute(delete(waiting_jobs).where(waiting_jobs.c.job_id == job_id).returning(waiting_jobs))
    return lambda other: other.execute(insert(waiting_jobs).values(row._asdict()))


def open_another(conn: Connection, job_id: int, now: datetime) -> Callable[[Connection], object]:
    """An attempt of a job that has a lost one."""
    stored_rows.open_attempt(conn, job_id, now, epoch=1)
    conn.execute(update(attempts).values(closed_at=now, closed_as="lost"))
    values = {"lease": "second", "holder": "pilot", "vo": "lhcb", "opened_at": now, "lease_expires_at": now}
    return lambda other: other.execute(insert(attempts).values(job_id=job_id, epoch=2, **values))


@pytest.mark.parametrize(("table", "prepare"), [(waiting_jobs, wait_again), (attempts, open_another)])
def test_a_row_that_comes_meanwhile_is_locked_with_its_job(
    postgresql: Engine,
    now: datetime,
    table: Table,
    prepare: Callable[[Connection, int, datetime], Callable[[Connection], object]],
) -> None:
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, now)
        comes = [prepare(conn, job_id, now)]

    def come(_conn: Connection, _cursor: object, statement: str, *_: Any) -> None:
        if f"FROM {jobs}" in statement and comes:
            with postgresql.begin() as other:
                comes.pop()(other)

    event.listen(postgresql, "before_cursor_execute", come)
    with database.writing(postgresql) as conn:
        transitions.lock_jobs(conn, [job_id])
        assert not comes
        free = select(table).with_for_update(skip_locked=True)
        with postgresql.begin() as other:
            assert not other.execute(free).all()
    with postgresql.begin() as other:
        assert {row.job_id for row in other.execute(free)} == {job_id}
