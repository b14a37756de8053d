"""Task queues: where jobs wait, and how it is known which of them are worth a try."""

import random
from datetime import datetime

from sqlalchemy import Engine, func, select

from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.jobs import jobs
from taskqueue.schema.tables import changes as changes_table
from taskqueue.schema.tables import requirement_classes, waiting_jobs
from taskqueue.schema.tables import task_queues as table
from taskqueue.task_queues import change_feed, task_queues
from tests.support import concurrency
from tests.support.factories import queued_jobs, stored_rows

OTHER = RequirementClass(vo="lhcb", cpu_time=86400)


def _told(engine: Engine, since: change_feed.FeedPosition) -> set[int]:
    with database.reading(engine) as conn:
        read = change_feed.read_changes(conn, since)
    assert read is not None
    return {int(change.key) for change in read[0]}


def _position(engine: Engine) -> change_feed.FeedPosition:
    with database.reading(engine) as conn:
        return change_feed.read_position(conn)


def test_jobs_that_ask_the_same_share_a_task_queue(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first, second = queued_jobs.put(conn, now, 2)
        [third] = queued_jobs.put(conn, now)
        assert len({queued_jobs.task_queue_of(conn, each) for each in (first, second, third)}) == 1
        assert queued_jobs.left(conn) == [first, second, third]


def test_jobs_of_other_owners_groups_or_requirements_do_not(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = [
            *queued_jobs.put(conn, now),
            *queued_jobs.put(conn, now, owner="bob"),
            *queued_jobs.put(conn, now, group="lhcb_prod"),
            *queued_jobs.put(conn, now, asked=OTHER),
        ]
        assert len({queued_jobs.task_queue_of(conn, each) for each in ids}) == 4
        assert conn.scalar(select(func.count()).select_from(requirement_classes)) == 2


def test_thousands_of_jobs_and_task_queues_go_in_at_once(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_ids = stored_rows.job_ids(conn, now, 2500)
        entries = [
            stored_rows.WaitingEntry(
                job_id=job_id,
                requirement_class=queued_jobs.EVERYWHERE,
                owner=f"user{job_id % 1250}",
                owner_group="lhcb_user",
                priority=1.0,
            )
            for job_id in job_ids
        ]
        stored_rows.enqueue(conn, entries, now=now)
        assert queued_jobs.left(conn) == job_ids
        assert len(queued_jobs.occupied(conn)) == 1250
        assert {jobs.get_job(conn, each).task_queue_id is None for each in job_ids[::100]} == {False}


def test_only_the_first_job_of_a_task_queue_is_told_to_the_matchers(engine: Engine, now: datetime) -> None:
    start = _position(engine)
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
    assert _told(engine, start) == {task_queue}
    start = _position(engine)
    queued_jobs.put(engine, now, 10)
    assert _told(engine, start) == set()


def test_an_emptied_task_queue_is_told_and_so_is_its_next_job(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
        task_queues.dequeue(conn, [job_id])
    start = _position(engine)
    with database.writing(engine) as conn:
        task_queues.mark_empty(conn, [task_queue], now=now)
        assert queued_jobs.occupied(conn) == set()
    assert _told(engine, start) == {task_queue}
    start = _position(engine)
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now)
        assert queued_jobs.occupied(conn) == {task_queue}
    assert _told(engine, start) == {task_queue}


def test_a_task_queue_with_a_job_is_never_called_empty(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
        task_queues.mark_empty(conn, [task_queue, 4711], now=now)
        assert queued_jobs.occupied(conn) == {task_queue}


def test_a_job_comes_back_to_its_place(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first, second = queued_jobs.put(conn, now, 2, priority=3.0)
        task_queue = queued_jobs.task_queue_of(conn, first)
        task_queues.dequeue(conn, [first])
        task_queues.requeue(conn, [first], now=now)
        assert task_queues.list_first_jobs(conn, [task_queue], 10) == {task_queue: (first, second)}
        assert task_queues.count_waiting(conn, [task_queue]) == {task_queue: 2}


def test_first_come_the_users_priority_and_then_the_order_of_arrival(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        low = queued_jobs.put(conn, now, 2, priority=1.0)
        high = queued_jobs.put(conn, now, 2, priority=9.0)
        task_queue = queued_jobs.task_queue_of(conn, low[0])
        assert task_queues.list_first_jobs(conn, [task_queue], 3) == {task_queue: (*high, low[0])}


def test_who_would_call_it_empty_does_not_overlook_a_job_that_is_on_its_way_in(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
        task_queues.dequeue(conn, [job_id])
    with database.writing(postgresql) as inserter:
        queued_jobs.put(inserter, now)  # not committed: invisible to all others
        with database.writing(postgresql) as conn:
            task_queues.mark_empty(conn, [task_queue], now=now)
    with database.reading(postgresql) as conn:
        assert queued_jobs.occupied(conn) == {task_queue}
        assert len(queued_jobs.left(conn)) == 1


def test_who_puts_a_job_in_waits_for_the_one_who_calls_it_empty_and_tells_it_anew(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
        task_queues.dequeue(conn, [job_id])

    def put() -> None:
        queued_jobs.put(postgresql, now)

    start = _position(postgresql)
    concurrency.meanwhile(postgresql, lambda conn: task_queues.mark_empty(conn, [task_queue], now=now), put)
    with database.reading(postgresql) as conn:
        told = conn.scalars(select(changes_table.c.key).where(changes_table.c.kind == change_feed.TASK_QUEUE))
        assert list(told) == [str(task_queue)] * 3, "made, emptied, occupied"
    assert _told(postgresql, start) == {task_queue}
    with database.reading(postgresql) as conn:
        assert queued_jobs.occupied(conn) == {task_queue}


def test_two_that_bring_the_same_new_class_share_it(engine: Engine, now: datetime) -> None:
    def put(number: int) -> None:
        for step in range(10):
            asked = RequirementClass(vo="lhcb", cpu_time=360 + step)
            queued_jobs.put(engine, now, asked=asked)

    concurrency.at_once(4, put)
    with database.reading(engine) as conn:
        assert conn.scalar(select(func.count()).select_from(requirement_classes)) == 10
        assert conn.scalar(select(func.count()).select_from(table)) == 10
        assert len(queued_jobs.left(conn)) == 40


def test_whatever_happens_at_once_a_task_queue_with_a_job_is_occupied(engine: Engine, now: datetime) -> None:
    classes = [RequirementClass(vo="lhcb", cpu_time=360 + step) for step in range(3)]

    def play(number: int) -> None:
        chance = random.Random(number)
        for _ in range(25):
            with database.writing(engine) as conn:
                if chance.random() < 0.5:
                    some = chance.sample(classes, 2)
                    for asked in sorted(some, key=lambda each: each.cpu_time):
                        queued_jobs.put(conn, now, asked=asked)
                        break
                else:
                    ids = conn.scalars(select(table.c.task_queue_id).order_by(table.c.task_queue_id)).all()
                    queued_jobs.claim(conn, ids, now, count=3)
            with database.writing(engine) as conn:
                task_queues.mark_empty(conn, conn.scalars(select(table.c.task_queue_id)).all(), now=now)

    concurrency.at_once(4, play)
    with database.reading(engine) as conn:
        with_jobs = set(conn.scalars(select(waiting_jobs.c.task_queue_id)))
        assert with_jobs <= queued_jobs.occupied(conn)
