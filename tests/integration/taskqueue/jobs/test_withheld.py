"""Jobs that are kept from pilots on purpose: by a hold of their users, or for another reason."""

import random
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine

from optimizers.chain import batch
from requirements.states import JobStatus
from taskqueue.accounting import wait_times
from taskqueue.db import database
from taskqueue.jobs import control, optimizer_queue, transitions, withheld
from taskqueue.jobs.withheld import KeepReason
from taskqueue.leases import attempts, expiry, retries
from tests.support import concurrency
from tests.support.factories.submitted_jobs import claim, grid, job, log_of, submit, waiting, way

JOB = {"Executable": "a.sh"}
YEAR = timedelta(days=365)


def wait_in_queue(engine: Engine, now: datetime, number: int = 1) -> list[int]:
    ids = submit(engine, grid(), now, *[JOB] * number)
    batch.optimize(engine, grid(), ids, now=now)
    return ids


def claimed(conn: Connection, now: datetime, most: int = 1) -> list[int]:
    """Ids of jobs that a pilot gets."""
    return [each.job_id for each in claim(conn, now, most)]


def hold(engine: Engine, ids: Collection[int], now: datetime) -> list[int]:
    with database.writing(engine) as conn:
        return control.hold_jobs(conn, ids, source="JobManager, ann", now=now)


def release(engine: Engine, ids: Collection[int], now: datetime) -> list[int]:
    with database.writing(engine) as conn:
        return control.release_jobs(conn, ids, source="JobManager, ann", now=now)


def test_a_held_job_is_in_no_task_queue_and_never_due(engine: Engine, now: datetime) -> None:
    [first, second] = wait_in_queue(engine, now, 2)
    assert hold(engine, [first], now) == [first]
    assert waiting(engine) == [second]
    held = job(engine, first)
    assert (held.status, held.minor_status, held.application_status) == ("Checking", "Held", "by ann")
    assert withheld.find_reason(held) == withheld.HOLD
    assert withheld.find_reason(job(engine, second)) is None
    with database.reading(engine) as conn:
        assert optimizer_queue.list_due(conn, now=now + YEAR, most=10) == []
        assert withheld.find_reasons(conn, [first, second]) == {first: withheld.HOLD}
    batch.optimize(engine, grid(), [first], now=now + YEAR)
    assert job(engine, first) == held


def test_a_released_job_comes_before_those_that_were_submitted_after_it(
    engine: Engine, now: datetime
) -> None:
    [first, *others] = wait_in_queue(engine, now, 3)
    hold(engine, [first], now)
    later = now + timedelta(hours=1)
    assert release(engine, [first, *others], later) == [first]
    batch.optimize(engine, grid(), [first], now=later)
    assert way(engine, first) == ["Received", "Waiting", "Checking", "Checking", "Waiting"]
    with database.writing(engine) as conn:
        assert claimed(conn, later, 2) == [first, others[0]]
    waited = wait_times.sum_by_cause(log_of(engine, first), now=later)
    assert waited["hold by its user"] == 3600


def test_a_job_that_was_put_off_is_not_due_earlier_because_it_was_held(engine: Engine, now: datetime) -> None:
    [first, second] = submit(engine, grid(), now, JOB, JOB)
    due = now + timedelta(hours=2)
    with database.writing(engine) as conn:
        retries.PUT_OFF.execute(conn, {"job_id": [first, second], "due_at": [due, due]})
    soon, late = now + timedelta(minutes=5), due + timedelta(minutes=5)
    hold(engine, [first, second], soon)
    assert release(engine, [first], soon) == [first]
    assert job(engine, first).due_at == due
    assert release(engine, [second], late) == [second]
    assert job(engine, second).due_at == late
    assert release(engine, [first], late) == []
    batch.optimize(engine, grid(), [first, second], now=late)
    hold(engine, [first], late)
    release(engine, [first], late)
    assert job(engine, first).due_at == late, "it waited, and was put off no more"


def test_to_hold_or_release_twice_changes_nothing(engine: Engine, now: datetime) -> None:
    [job_id] = wait_in_queue(engine, now)
    hold(engine, [job_id], now)
    before = log_of(engine, job_id)
    assert hold(engine, [job_id], now + YEAR) == [job_id]
    assert log_of(engine, job_id) == before
    release(engine, [job_id], now)
    assert release(engine, [job_id], now) == []


def test_a_job_that_the_optimizers_have_not_decided_can_be_held(engine: Engine, now: datetime) -> None:
    """A worker that has read it before then changes nothing."""
    [job_id] = submit(engine, grid(), now, JOB)
    with database.reading(engine) as conn:
        read = optimizer_queue.read_due(conn, [job_id], now=now)
    hold(engine, [job_id], now)
    with database.writing(engine) as conn:
        assert optimizer_queue.lock_due(conn, read, now=now) == []
    release(engine, [job_id], now)
    assert batch.optimize(engine, grid(), [job_id], now=now).waiting == (job_id,)


def test_neither_a_rescheduling_nor_a_pilot_that_lost_it_passes_a_hold_by(
    engine: Engine, now: datetime
) -> None:
    [job_id] = wait_in_queue(engine, now)
    with database.writing(engine) as conn:
        assert claimed(conn, now) == [job_id]
        attempt = attempts.get_latest(conn, job_id)
        attempts.close_attempts(conn, [job_id], closed_as=attempts.LOST, now=now)
        moved = transitions.move_jobs(
            conn, [job_id], JobStatus.RESCHEDULED, minor="lost", source="test", now=now
        )
        assert moved
    assert attempt is not None
    assert hold(engine, [job_id], now) == [job_id]
    with database.writing(engine) as conn:
        assert control.reschedule_jobs(conn, [job_id], source="ann", now=now, maximum=9) == []
        assert control.reset_jobs(conn, [job_id], source="ann", now=now) == []
        assert not expiry.resume(conn, attempt, now=now)
        assert control.kill_jobs(conn, [job_id], source="ann", now=now) == [job_id]


def test_who_has_the_waiting_row_decides_between_a_claim_and_a_hold(engine: Engine, now: datetime) -> None:
    [job_id] = wait_in_queue(engine, now)
    got = concurrency.meanwhile(engine, lambda conn: claimed(conn, now), lambda: hold(engine, [job_id], now))
    assert (got, job(engine, job_id).status) == ([], JobStatus.MATCHED)


def test_a_claim_passes_over_a_job_that_is_being_held(engine: Engine, now: datetime) -> None:
    """On SQLite it waits: there is one writer."""
    [job_id] = wait_in_queue(engine, now)

    def take() -> list[int]:
        with database.writing(engine) as conn:
            return claimed(conn, now)

    def begin_hold(conn: Connection) -> None:
        assert control.hold_jobs(conn, [job_id], source="ann", now=now) == [job_id]

    waits = engine.dialect.name == "sqlite"
    assert concurrency.meanwhile(engine, begin_hold, take, waits=waits) == []
    assert job(engine, job_id).minor_status == "Held"


def test_claims_holds_and_releases_at_once_give_no_held_job_away(engine: Engine, now: datetime) -> None:
    """With retries, as in the service: a job may enter its task queue while its locks are taken."""
    ids = wait_in_queue(engine, now, 30)

    def act(number: int) -> None:
        dice = random.Random(number)
        for _ in range(15):
            some = dice.sample(ids, 6)
            match number % 3:
                case 0:
                    with database.writing(engine) as conn:
                        claimed(conn, now)
                case 1:
                    database.retry_on_conflict(hold)(engine, some, now)
                case 2:
                    released = database.retry_on_conflict(release)(engine, some, now)
                    batch.optimize(engine, grid(), released, now=now)

    concurrency.at_once(6, act)
    with database.reading(engine) as conn:
        held = withheld.find_reasons(conn, ids)
    there = set(waiting(engine))
    for job_id in ids:
        status = job(engine, job_id).status
        assert (job_id in there) == (status is JobStatus.WAITING)
        assert job_id not in held or status is JobStatus.CHECKING


def test_a_released_job_stays_where_it_is_if_something_else_keeps_it(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = KeepReason(step="Others", minor="Waits for others", let_go="", wait_cause="", remedy="")
    [kept, free] = wait_in_queue(engine, now, 2)

    def find_kept(_: Connection, ids: Collection[int]) -> Mapping[int, str]:
        return {job_id: "after 7" for job_id in ids if job_id == kept}

    monkeypatch.setitem(withheld.STILL_KEPT, other, find_kept)
    hold(engine, [kept, free], now)
    assert release(engine, [kept, free], now) == [kept, free]
    found = job(engine, kept)
    assert (found.minor_status, found.application_status, found.due_at) == (
        "Waits for others",
        "after 7",
        None,
    )
    assert job(engine, free).due_at == now
