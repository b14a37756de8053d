"""The claim: a job is taken by one, whole, and only where it may run."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from cs_config.classes.queue_classes import queue_classes as configured
from requirements.resource import Location
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import control, jobs, log
from taskqueue.leases import assignment, attempts, opening
from taskqueue.pools import queue_class_store
from tests.support import concurrency
from tests.support.factories import queued_jobs, stored_rows

POOL = "a" * 64


def test_a_claimed_job_is_matched_with_attempt_lease_and_log_in_one_transaction(
    engine: Engine, now: datetime
) -> None:
    place = Location(site="A.B.ch", ce="ce1", queue="long")
    holder = opening.LeaseHolder(subject="pilot-1", stamp="stamp-1", lease_time=timedelta(minutes=5))
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
    [claimed] = queued_jobs.claim(engine, [task_queue], now, place=place, holder=holder)
    with database.reading(engine) as conn:
        job = jobs.get_job(conn, job_id)
        attempt = attempts.get_attempt(conn, claimed.lease)
        last = log.read_log(conn, job_id)[-1]
        assert queued_jobs.left(conn) == []
    assert (job.status, job.minor_status, job.site, job.epoch) == ("Matched", "Assigned", "A.B.ch", 1)
    assert (claimed.job_id, claimed.epoch) == (attempt.job_id, attempt.epoch) == (job_id, 1)
    assert claimed.lease_expires_at == attempt.lease_expires_at == now + timedelta(minutes=5)
    assert (attempt.holder, attempt.stamp, attempt.vo) == ("pilot-1", "stamp-1", "lhcb")
    assert (attempt.site, attempt.ce, attempt.queue) == ("A.B.ch", "ce1", "long")
    assert (attempt.closed_at, attempt.started_at, attempt.ending) == (None, None, False)
    assert (last.from_status, last.to_status, last.source, last.epoch) == (
        JobStatus.WAITING,
        JobStatus.MATCHED,
        "Matcher",
        1,
    )


def test_the_users_priority_comes_first_and_then_who_came_first(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        low = queued_jobs.put(conn, now, 2, priority=1.0)
        high = queued_jobs.put(conn, now, 2, priority=9.0)
        task_queue = queued_jobs.task_queue_of(conn, low[0])
        order = [queued_jobs.claim(conn, [task_queue], now)[0].job_id for _ in range(4)]
    assert order == [*high, *low]


def test_several_jobs_come_from_the_task_queues_in_their_order(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first = queued_jobs.put(conn, now, 2)
        second = queued_jobs.put(conn, now, 3, owner="bob")
        order = [queued_jobs.task_queue_of(conn, each) for each in (first[0], second[0])]
        claimed = queued_jobs.claim(conn, order, now, count=4)
        assert {each.job_id for each in claimed} == {*first, *second[:2]}
        assert queued_jobs.left(conn) == second[2:]


def test_the_description_has_the_jobs_own_values(engine: Engine, now: datetime) -> None:
    body = {"Executable": "run.sh", "Arguments": "%(A)s of %n", "InputData": ["LFN:/lhcb/%s"]}
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now, body=body, parameters={"A": "x", "n": "3", "s": "file"})
        [claimed] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_id)], now)
    assert claimed.description["Arguments"] == "x of 3"
    assert claimed.description["InputData"] == ["LFN:/lhcb/file"]
    assert claimed.description["JobID"] == job_id


def test_an_empty_task_queue_gives_nothing_and_has_nothing_left(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
        queued_jobs.claim(conn, [task_queue], now)
        assert queued_jobs.claim(conn, [task_queue], now) == []
        assert assignment.find_nonempty(conn, [task_queue], place=queued_jobs.ANYWHERE) == frozenset()


def test_a_job_that_is_not_waiting_any_more_is_not_claimed_whatever_its_row_says(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        first, second = queued_jobs.put(conn, now, 2)
        stored_rows.force(conn, first, status=JobStatus.KILLED.value)
        [claimed] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, second)], now)
        assert claimed.job_id == second


@pytest.fixture
def pooled(engine: Engine, now: datetime) -> tuple[int, Location]:
    """A task queue whose jobs have a pool, and the place whose queue is eligible for it."""
    config = queued_jobs.grid()
    asked = replace(queued_jobs.EVERYWHERE, submit_pool=POOL)
    with database.writing(engine) as conn:
        queued_jobs.pool(conn, now, POOL, queued_jobs.LONG, config=config)  # and what is like it at its CE
        [job_id] = queued_jobs.put(conn, now, asked=asked)
        place = Location(site="A.B.ch", ce="ce1", queue="long")
        return queued_jobs.task_queue_of(conn, job_id), place


def test_the_current_mapping_decides_not_what_a_matcher_remembers(
    engine: Engine, now: datetime, pooled: tuple[int, Location]
) -> None:
    task_queue, place = pooled
    queued_jobs.remap(engine, now, POOL, config=queued_jobs.grid())
    with database.writing(engine) as conn:
        assert queued_jobs.claim(conn, [task_queue], now, place=place) == []
        assert assignment.find_nonempty(conn, [task_queue], place=place) == frozenset()


def test_a_queue_that_has_become_another_one_does_not_get_the_jobs_of_what_it_was(
    engine: Engine, now: datetime, pooled: tuple[int, Location]
) -> None:
    task_queue, place = pooled
    smaller = queued_jobs.grid(
        queued_jobs.GRID.replace("long: {}, short", "long: {MaxRAM: 1}, short"), version=2
    )
    with database.writing(engine) as conn:
        classes = configured(smaller, "lhcb")
        queue_class_store.store_classes(conn, vo="lhcb", config_version=2, classes=classes, now=now)
    assert queued_jobs.claim(engine, [task_queue], now, place=place) == []


@pytest.mark.parametrize(
    ("place", "fits"),
    [
        (Location(site=""), False),
        (Location(site="A.B.ch"), True),
        (Location(site="A.B.ch", ce="ce1"), True),
        (Location(site="A.B.ch", ce="ce2"), False),
        (Location(site="C.D.ch"), False),
        (Location(site="A.B.ch", ce="ce1", queue="short"), True),
        (Location(site="A.B.ch", ce="ce1", queue="none"), False),
    ],
)
def test_pool_jobs_go_only_where_a_queue_of_the_stated_place_is_eligible(
    engine: Engine, now: datetime, pooled: tuple[int, Location], place: Location, *, fits: bool
) -> None:
    task_queue, _ = pooled
    with database.writing(engine) as conn:
        assert bool(assignment.find_nonempty(conn, [task_queue], place=place)) == fits
        assert bool(queued_jobs.claim(conn, [task_queue], now, place=place)) == fits


def test_jobs_in_other_hands_are_passed_over_and_not_called_gone(postgresql: Engine, now: datetime) -> None:
    with database.writing(postgresql) as conn:
        first, second = queued_jobs.put(conn, now, 2)
        task_queue = queued_jobs.task_queue_of(conn, first)
    with database.writing(postgresql) as rival:
        assert [each.job_id for each in queued_jobs.claim(rival, [task_queue], now)] == [first]
        with database.writing(postgresql) as conn:
            assert [each.job_id for each in queued_jobs.claim(conn, [task_queue], now)] == [second]
        with database.writing(postgresql) as conn:
            assert queued_jobs.claim(conn, [task_queue], now) == []
            assert assignment.find_nonempty(conn, [task_queue], place=queued_jobs.ANYWHERE) == {task_queue}


def test_a_kill_and_a_claim_at_once_leave_the_job_killed(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, 30)
        task_queue = queued_jobs.task_queue_of(conn, ids[0])

    def play(number: int) -> None:
        for job_id in ids:
            with database.writing(engine) as conn:
                if number == 0:
                    assert control.kill_jobs(conn, [job_id], source="alice", now=now)
                else:
                    queued_jobs.claim(conn, [task_queue], now)

    concurrency.at_once(3, play)
    with database.reading(engine) as conn:
        assert {jobs.get_job(conn, each).status for each in ids} == {JobStatus.KILLED}
        assert queued_jobs.left(conn) == []
        open_ones = [each for each in ids if (last := attempts.get_latest(conn, each)) and not last.closed_at]
        assert all(attempts.get_latest(conn, each).ending for each in open_ones)  # type: ignore[union-attr]


def test_what_a_holder_still_has_is_told_again_and_only_to_it(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first, second = queued_jobs.put(conn, now, 2)
        claimed = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, first)], now, count=2)
        attempts.close_attempts(conn, [second], closed_as="released", now=now)
        assert opening.list_held(conn, [first, second], subject="pilot") == [
            each for each in claimed if each.job_id == first
        ]
        assert opening.list_held(conn, [first, second], subject="another") == []


def test_a_reserved_request_is_new_once(engine: Engine, now: datetime) -> None:
    one, two = ("pilot", "r1"), ("pilot", "r2")
    with database.writing(engine) as conn:
        assert attempts.reserve_keys(conn, [one], now=now) == {one}
        attempts.store_answers(conn, {one: [3, 2]}, now=now)
        assert attempts.reserve_keys(conn, [one, two], now=now) == {two}
        attempts.release_keys(conn, [two])
        assert attempts.read_answers(conn, [one, two, ("other", "r1")]) == {one: [2, 3]}


def test_an_answer_is_stored_also_if_the_earlier_one_was_deleted_meanwhile(
    engine: Engine, now: datetime
) -> None:
    key = ("pilot", "r1")
    with database.writing(engine) as conn:
        attempts.reserve_keys(conn, [key], now=now)
    with database.writing(engine) as conn:
        assert attempts.reserve_keys(conn, [key], now=now) == frozenset()
        attempts.release_keys(conn, [key])  # as another transaction that could not deliver the answer
        attempts.store_answers(conn, {key: [7]}, now=now)
        assert attempts.read_answers(conn, [key], lock=True) == {key: [7]}


def test_the_second_of_two_equal_requests_waits_for_the_first_ones_answer(
    postgresql: Engine, now: datetime
) -> None:
    key = ("pilot", "r1")

    def again() -> dict[tuple[str, str], list[int]]:
        with database.writing(postgresql) as conn:
            assert attempts.reserve_keys(conn, [key], now=now) == frozenset()
            return dict(attempts.read_answers(conn, [key]))

    queued_jobs.put(postgresql, now)
    assert concurrency.meanwhile(
        postgresql,
        lambda conn: (
            attempts.reserve_keys(conn, [key], now=now),
            attempts.store_answers(conn, {key: [7]}, now=now),
        ),
        again,
    ) == {key: [7]}
