"""The same submission under the same key makes its jobs once."""

from datetime import datetime

from sqlalchemy import Connection, Engine

from taskqueue.db import database
from taskqueue.jobs import submission
from tests.support import concurrency
from tests.support.factories import stored_rows


def _submit(
    conn: Connection, now: datetime, *, subject: str = "alice", digest: str = "d", jobs: int = 2
) -> list[int]:
    earlier = submission.reserve_key(conn, subject=subject, key="k", body_digest=digest, now=now)
    if earlier is not None:
        return earlier
    job_ids = stored_rows.job_ids(conn, now, jobs)
    submission.fulfil_key(conn, subject=subject, key="k", job_ids=job_ids)
    return job_ids


def _count(engine: Engine) -> int:
    with database.reading(engine) as conn:
        return stored_rows.count_jobs(conn)


def test_a_retry_that_comes_while_the_first_is_stored_waits_and_gets_its_ids(
    engine: Engine, now: datetime
) -> None:
    first: list[int] = []

    def retry() -> list[int]:
        with database.writing(engine) as conn:
            return _submit(conn, now)

    again = concurrency.meanwhile(engine, lambda conn: first.extend(_submit(conn, now)), retry)
    assert again == first
    assert _count(engine) == 2
