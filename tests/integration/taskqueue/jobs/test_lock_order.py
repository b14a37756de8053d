"""All rows of a job are locked in one order, also those that come while its locks are waited for."""

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event, insert, select
from sqlalchemy.exc import OperationalError

from taskqueue.db import database
from taskqueue.jobs import transitions
from taskqueue.schema.tables import waiting_jobs
from tests.support.factories import queued_jobs

LOCK_AT_ONCE = select(waiting_jobs).with_for_update(nowait=True)


def test_a_job_that_begins_to_wait_meanwhile_is_locked_with_its_row(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as conn:
        queued_jobs.put(conn, now)
        comes = [conn.execute(delete(waiting_jobs).returning(*waiting_jobs.c)).one()]
    job_id = comes[0].job_id

    def come(_conn: Connection, _cursor: object, statement: str, *_: Any) -> None:
        if "FROM jobs" in statement and comes:
            with postgresql.begin() as other:
                other.execute(insert(waiting_jobs).values(comes.pop()._asdict()))

    event.listen(postgresql, "before_cursor_execute", come)
    with database.writing(postgresql) as conn:
        transitions.lock_jobs(conn, [job_id])
        assert not comes
        with (
            postgresql.begin() as other,
            pytest.raises(OperationalError, match="could not obtain lock"),
        ):
            other.execute(LOCK_AT_ONCE)
    with postgresql.begin() as other:
        assert [row.job_id for row in other.execute(LOCK_AT_ONCE)] == [job_id]
