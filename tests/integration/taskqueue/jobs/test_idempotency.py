"""The same submission under the same key makes its jobs once."""

from datetime import datetime

import pytest
from sqlalchemy import Connection, Engine

from taskqueue.db import database
from taskqueue.errors import IdempotencyConflict
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


def test_the_same_request_again_gets_the_same_ids(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first = _submit(conn, now)
    with database.writing(engine) as conn:
        assert _submit(conn, now) == first
    assert _count(engine) == 2


def test_another_request_under_the_key_is_a_conflict(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _submit(conn, now)
        with pytest.raises(IdempotencyConflict, match="'k' was used for another request"):
            _submit(conn, now, digest="other")


def test_the_keys_of_others_are_others(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert set(_submit(conn, now)).isdisjoint(_submit(conn, now, subject="bob"))


def test_a_key_whose_submission_failed_is_free_again(engine: Engine, now: datetime) -> None:
    def fail() -> None:
        with database.writing(engine) as conn:
            _submit(conn, now)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.writing(engine) as conn:
        assert len(_submit(conn, now, digest="mended")) == 2


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


def test_many_at_once_make_the_jobs_once(engine: Engine, now: datetime) -> None:
    def submit(_: int) -> tuple[int, ...]:
        with database.writing(engine) as conn:
            return tuple(_submit(conn, now))

    assert len(set(concurrency.at_once(8, submit))) == 1
    assert _count(engine) == 2
