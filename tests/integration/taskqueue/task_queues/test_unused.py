"""Task queues and classes that nobody uses go, and no job is ever left without its own."""

import random
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, func, select

from agents.retention import retention
from requirements.requirement_class import RequirementClass
from taskqueue import retention as rows
from taskqueue.db import database
from taskqueue.jobs import jobs
from taskqueue.schema.tables import requirement_classes, waiting_jobs
from taskqueue.schema.tables import task_queues as table
from taskqueue.task_queues import task_queues
from tests.support import concurrency, databases
from tests.support.factories import queued_jobs, stored_rows, submitted_jobs

DAY = timedelta(days=1)


def _rows(engine: Engine) -> tuple[int, int]:
    """How many task queues and classes there are."""
    with database.reading(engine) as conn:
        counts = [
            conn.scalar(select(func.count()).select_from(each)) or 0 for each in (table, requirement_classes)
        ]
    return counts[0], counts[1]


def _used_once(engine: Engine, now: datetime) -> int:
    """A task queue whose only job is gone."""
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        found = queued_jobs.task_queue_of(conn, job_id)
        task_queues.dequeue(conn, [job_id])
        task_queues.mark_empty(conn, [found], now=now)
        stored_rows.remove(conn, [job_id])
    return found


def _find(conn: Connection, before: datetime) -> set[int]:
    """Task queues that no job refers to, by reading three jobs at a time."""
    search = rows.search_unused(conn, before=before)
    while search.read_on(conn, most=3):
        pass
    return search.left


def _remove(conn: Connection, before: datetime) -> None:
    rows.remove_unused(conn, _find(conn, before), before=before)
    rows.remove_unused_classes(conn)


def test_what_nothing_refers_to_goes_after_a_day(engine: Engine, now: datetime) -> None:
    _used_once(engine, now)
    for later, left in ((timedelta(hours=23), (1, 1)), (2 * DAY, (0, 0))):
        retention.cycle(engine, queued_jobs.grid(), now=now + later, holder="me")
        assert _rows(engine) == left


def test_a_task_queue_whose_last_job_was_killed_goes_although_no_pilot_looked(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queues.dequeue(conn, [job_id])
        stored_rows.remove(conn, [job_id])
    for days in (2, 4):
        retention.cycle(engine, queued_jobs.grid(), now=now + days * DAY, holder="me")
    assert _rows(engine) == (0, 0)


def test_a_task_queue_stays_as_long_as_some_job_remembers_it(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        running, waits = queued_jobs.put(conn, now, 1), queued_jobs.put(conn, now, owner="bob")
        [taken] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, running[0])], now)
        task_queues.mark_empty(conn, [queued_jobs.task_queue_of(conn, running[0])], now=now)
    retention.cycle(engine, queued_jobs.grid(), now=now + 2 * DAY, holder="me")
    assert _rows(engine) == (2, 1)
    with database.writing(engine) as conn:
        task_queues.requeue(conn, [taken.job_id], now=now)
        assert queued_jobs.left(conn) == sorted([*running, *waits])


def test_a_search_goes_on_in_the_next_cycle(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pages of two jobs each in a cycle, seven jobs in all, the last of which uses a task queue."""
    monkeypatch.setattr(retention, "_PAGE", 2)
    monkeypatch.setattr(retention, "_PAGES", 3)
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now, 6)
        [last] = queued_jobs.put(conn, now, owner="bob")
        used = queued_jobs.task_queue_of(conn, last)
        task_queues.dequeue(conn, [last])
        [gone] = queued_jobs.put(conn, now, owner="eve")
        task_queues.dequeue(conn, [gone])
        task_queues.mark_empty(conn, [used, queued_jobs.task_queue_of(conn, gone)], now=now)
        stored_rows.remove(conn, [gone])
    memory = retention.RetentionState()
    left = []
    for minutes in (0, 10, 20):
        at = now + 2 * DAY + timedelta(minutes=minutes)
        retention.cycle(engine, queued_jobs.grid(), now=at, holder="me", memory=memory)
        left.append((_rows(engine)[0], memory.task_queues is None))
    assert left == [(3, False), (2, True), (2, True)]
    assert (
        databases.scalar(engine, select(table.c.task_queue_id).where(table.c.task_queue_id == used)) == used
    )


def test_a_job_that_comes_while_its_task_queue_goes_gets_a_new_one(engine: Engine, now: datetime) -> None:
    old = _used_once(engine, now)

    def put() -> int:
        [job_id] = queued_jobs.put(engine, now + DAY)
        return job_id

    job_id = concurrency.meanwhile(engine, lambda conn: _remove(conn, now + DAY), put)
    with database.reading(engine) as conn:
        assert queued_jobs.task_queue_of(conn, job_id) != old
        assert queued_jobs.occupied(conn) == {queued_jobs.task_queue_of(conn, job_id)}
        assert jobs.get_job(conn, job_id).task_queue_id == queued_jobs.task_queue_of(conn, job_id)


def test_a_task_queue_that_comes_while_its_class_goes_gets_a_new_one(engine: Engine, now: datetime) -> None:
    _used_once(engine, now)

    def put() -> int:
        [job_id] = queued_jobs.put(engine, now + DAY, owner="bob")
        return job_id

    job_id = concurrency.meanwhile(engine, lambda conn: _remove(conn, now + DAY), put)
    assert _rows(engine) == (1, 1)
    assert submitted_jobs.waiting(engine) == [job_id]


def test_a_task_queue_that_a_job_is_on_its_way_into_stays(postgresql: Engine, now: datetime) -> None:
    _used_once(postgresql, now)

    def remove() -> None:
        with database.writing(postgresql) as conn:
            _remove(conn, now + DAY)

    concurrency.meanwhile(postgresql, lambda conn: queued_jobs.put(conn, now + DAY), remove, waits=False)
    assert len(submitted_jobs.waiting(postgresql)) == 1
    assert _rows(postgresql) == (1, 1)


def test_a_class_that_a_task_queue_is_being_made_for_stays(postgresql: Engine, now: datetime) -> None:
    _used_once(postgresql, now)
    with database.writing(postgresql) as conn:
        rows.remove_unused(conn, _find(conn, now + DAY), before=now + DAY)
    assert _rows(postgresql) == (0, 1)

    def remove() -> None:
        with database.writing(postgresql) as conn:
            rows.remove_unused_classes(conn)

    concurrency.meanwhile(postgresql, lambda conn: queued_jobs.put(conn, now + DAY), remove, waits=False)
    assert _rows(postgresql) == (1, 1)


def test_whatever_comes_and_goes_at_once_every_job_has_its_task_queue(engine: Engine, now: datetime) -> None:
    classes = [RequirementClass(vo="lhcb", cpu_time=360 + step) for step in range(3)]

    def play(number: int) -> None:
        chance = random.Random(number)
        for _ in range(20):
            job_ids = queued_jobs.put(engine, now, asked=chance.choice(classes))
            if chance.random() < 0.7:
                with database.writing(engine) as conn:
                    task_queues.dequeue(conn, job_ids)
                    stored_rows.force(conn, job_ids[0], task_queue_id=None)
            with database.writing(engine) as conn:
                task_queues.mark_empty(conn, conn.scalars(select(table.c.task_queue_id)).all(), now=now)
            with database.writing(engine) as conn:
                _remove(conn, now + DAY)

    concurrency.at_once(4, play)
    with database.reading(engine) as conn:
        wait = conn.execute(select(waiting_jobs.c.job_id, waiting_jobs.c.task_queue_id)).all()
        assert wait
        assert {row.task_queue_id for row in wait} <= queued_jobs.occupied(conn)
