"""What pages list: pilots by their last news, task queues by whose they are, grid jobs, queues of pools."""

import json
import re
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text, update

from cs_config.tree.address import QueueAddress
from matcher.explain import queue_report, queue_set
from optimizers.chain import batch
from optimizers.submit.submitter import Submitter
from requirements.job_fields import LOCAL_STATUS
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus, LocalJobsStatus
from taskqueue.db import database
from taskqueue.jobs import grid_jobs
from taskqueue.jobs import search as job_search
from taskqueue.jobs.search import JobCount, JobSelector
from taskqueue.ownership import EVERY_ROW, OwnershipFilter
from taskqueue.pilots import pilots, search
from taskqueue.pools import listing
from taskqueue.schema.tables import attempts
from taskqueue.task_queues import listing as task_queues_listing
from tests.support.factories import queued_jobs as waiting_jobs
from tests.support.factories import stored_rows, submitted_jobs

BOB = Submitter(subject="bob@lhcb", vo="lhcb", owner="bob", owner_group="lhcb_prod")
SMALL, LARGE = {"Memory": 1000}, {"Memory": 6000}


@pytest.fixture
def waiting(engine: Engine, now: datetime) -> list[int]:
    """Two jobs of ann in one pool, one of bob in the same, one of bob in another."""
    config = submitted_jobs.store_grid(engine, now)
    jobs = [{"Executable": "x", "Requirements": asked} for asked in (SMALL, SMALL, SMALL, LARGE)]
    ids = submitted_jobs.submit(engine, config, now, *jobs[:2])
    ids += submitted_jobs.submit(engine, config, now, *jobs[2:], submitter=BOB)
    batch.optimize(engine, config, ids, now=now)
    return ids


def test_pilots_come_by_their_last_news_page_by_page(engine: Engine, now: datetime) -> None:
    queue = QueueAddress(site="A.B.ch", ce="ce", queue="big")
    with database.writing(engine) as conn:
        for number, stamp in enumerate(("a", "b", "c", "d", "e")):
            at = now + timedelta(minutes=number // 2)
            pilots.register(conn, stamp=stamp, vo="lhcb", queue=queue, submitted_by="d", now=at)
    with database.reading(engine) as conn:
        pages = [[each.stamp for each in search.list_latest(conn, search.PilotFilter(), limit=2)]]
        while pages[-1]:
            found = search.list_latest(conn, search.PilotFilter(), limit=2, after=pages[-1][-1])
            pages.append([each.stamp for each in found])
        assert pages == [["e", "c"], ["d", "a"], ["b"], []]
        gone = search.list_latest(conn, search.PilotFilter(), limit=1, after="gone")
    assert [each.stamp for each in gone] == ["e"]


def test_task_queues_are_found_by_owner_group_and_pool(engine: Engine, waiting: list[int]) -> None:
    pool = submitted_jobs.job(engine, waiting[0]).submit_pool
    with database.reading(engine) as conn:

        def found(**asked: object) -> list[tuple[str, int]]:
            which = task_queues_listing.TaskQueueFilter(**asked)  # type: ignore[arg-type]
            every = task_queues_listing.list_task_queues(conn, which, limit=10)
            assert all(a.task_queue.task_queue_id < b.task_queue.task_queue_id for a, b in pairwise(every))
            return sorted((each.task_queue.owner, each.waiting) for each in every)

        assert found() == [("ann", 2), ("bob", 1), ("bob", 1)]
        assert found(visible=[OwnershipFilter(owner="ann")]) == [("ann", 2)]
        assert found(owner_group="lhcb_prod") == [("bob", 1), ("bob", 1)]
        assert found(submit_pool=pool) == [("ann", 2), ("bob", 1)]
        assert found(submit_pool="%") == []
        assert found(visible=[OwnershipFilter(vos=frozenset({"cms"}))]) == []
        [first, second, third] = task_queues_listing.list_task_queues(
            conn, task_queues_listing.TaskQueueFilter(), limit=10
        )
        after = task_queues_listing.list_task_queues(
            conn, task_queues_listing.TaskQueueFilter(), limit=10, after=first.task_queue.task_queue_id
        )
    assert list(after) == [second, third]


def test_queues_of_many_pools_are_those_of_each(engine: Engine, waiting: list[int]) -> None:
    with database.reading(engine) as conn:
        ids = [pool.pool_id for pool in listing.list_pools(conn, listing.PoolFilter(), limit=10)]
        listed = listing.list_queues(conn, ids)
        assert listed == {pool_id: stored_rows.list_eligible_queues(conn, pool_id) for pool_id in ids}
        assert sorted(map(len, listed.values())) == [1, 3]
        assert listing.count_queues(conn, ids) == {each: len(listed[each]) for each in ids}
        assert listing.list_queues(conn, []) == listing.count_queues(conn, []) == {}


def test_jobs_of_pools_are_counted_no_further_than_is_fair_to_all_of_them(
    engine: Engine, waiting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = (submitted_jobs.job(engine, each).submit_pool or "" for each in (waiting[0], waiting[3]))
    with database.reading(engine) as conn:
        whole = listing.count_jobs_by_status(conn, [small, large])
        assert whole == {small: {JobStatus.WAITING: JobCount(3)}, large: {JobStatus.WAITING: JobCount(1)}}
        monkeypatch.setattr(listing, "MAX_COUNTED_JOBS", 4)
        cut = listing.count_jobs_by_status(conn, [small, large])
        assert cut[small] == {JobStatus.WAITING: JobCount(2, more=True)}
        assert cut[large] == {JobStatus.WAITING: JobCount(1)}
        assert listing.count_jobs_by_status(conn, [small])[small] == {JobStatus.WAITING: JobCount(3)}


def test_sites_reach_what_their_queues_may_run(engine: Engine, waiting: list[int]) -> None:
    config = submitted_jobs.grid()
    with database.reading(engine) as conn:
        classes = task_queues_listing.list_waiting(conn, None)
    runnable = queue_report.count_runnable(config, classes, {})
    assert runnable.by_site == {"A.B.ch": 4, "C.D.ch": 3}
    assert set(queue_set.all_queues(config, "lhcb").sites) == {"A.B.ch", "C.D.ch"}


def test_grid_jobs_are_the_open_attempts_of_job_managers(engine: Engine, now: datetime) -> None:
    told = {"local_jobs": '{"done": 2}', "phases": '[{"name": "generate", "done": 1, "of": 2, "unit": ""}]'}
    with database.writing(engine) as conn:
        ids = [stored_rows.job_in(conn, now, JobStatus.RUNNING) for _ in range(4)]
        for job_id in ids:
            stored_rows.open_attempt(conn, job_id, now)
        conn.execute(update(attempts).where(attempts.c.job_id.in_(ids[:3])).values(site="A.B.ch", **told))
        closed = {"closed_at": now, "closed_as": "finished"}
        conn.execute(update(attempts).where(attempts.c.job_id == ids[0]).values(**closed))
    with database.reading(engine) as conn:
        found = grid_jobs.list_grid_jobs(conn, EVERY_ROW, limit=10)
        assert [each.job_id for each in found] == [ids[2], ids[1]]
        assert (found[0].local_jobs, found[0].phases[0].name) == ({"done": 2}, "generate")
        assert grid_jobs.list_grid_jobs(conn, EVERY_ROW, limit=10, after=ids[2]) == found[1:]
        elsewhere, there = ([OwnershipFilter(sites=frozenset({site}))] for site in ("C.D.ch", "A.B.ch"))
        assert grid_jobs.list_grid_jobs(conn, elsewhere, limit=10) == []
        assert grid_jobs.list_grid_jobs(conn, [], limit=10) == []
        assert grid_jobs.list_grid_jobs(conn, [*elsewhere, *there], limit=10) == found
        [manager] = grid_jobs.list_managers(conn, there)
        assert (manager.site, manager.grid_jobs) == ("A.B.ch", 2)
        assert grid_jobs.list_managers(conn, [OwnershipFilter(owner="nobody")]) == []


@pytest.mark.parametrize(
    ("local_jobs", "status"),
    [
        ({}, "unsubmitted"),
        ({"unsubmitted": 2}, "unsubmitted"),
        ({"unsubmitted": 1, "done": 1}, "active"),
        ({"running": 1, "failed": 2}, "active"),
        ({"intended": 1}, "active"),
        ({"done": 3}, "done"),
        ({"done": 3, "killed": 1}, "error"),
        ({"failed": 1}, "error"),
    ],
)
def test_grid_jobs_are_found_by_the_status_of_their_local_jobs(
    engine: Engine, now: datetime, local_jobs: dict[str, int], status: str
) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, JobStatus.RUNNING)
        stored_rows.open_attempt(conn, job_id, now)
        conn.execute(update(attempts).values(local_jobs=json.dumps(local_jobs)))
    with database.reading(engine) as conn:
        found = {
            each: [
                job.local_status for job in grid_jobs.list_grid_jobs(conn, EVERY_ROW, limit=10, status=each)
            ]
            for each in LocalJobsStatus
        }
        listed = {each: _list_by_local_status(conn, each) for each in LocalJobsStatus}
        assert _list_by_local_status(conn, *LocalJobsStatus) == [job_id]
    assert {each: jobs for each, jobs in found.items() if jobs} == {status: [status]}
    assert {each: jobs for each, jobs in listed.items() if jobs} == {status: [job_id]}


def _list_by_local_status(conn: Connection, *wanted: LocalJobsStatus) -> list[int]:
    which = JobSelector().where(LOCAL_STATUS, frozenset(wanted))
    return [job.job_id for job in job_search.list_jobs(conn, which, limit=10)]


def test_jobs_are_found_by_the_local_jobs_of_the_latest_attempt_only(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        grid, again, of_pilot = (stored_rows.job_in(conn, now, JobStatus.RUNNING) for _ in range(3))
        for job_id in (grid, again, of_pilot):
            stored_rows.open_attempt(conn, job_id, now)
        managed = attempts.c.job_id.in_([grid, again])
        failed = {"closed_at": now, "closed_as": "finished", "local_jobs": '{"failed": 1}'}
        conn.execute(update(attempts).where(managed).values(**failed))
        stored_rows.open_attempt(conn, again, now, epoch=2)
    with database.reading(engine) as conn:
        assert _list_by_local_status(conn, LocalJobsStatus.ERROR) == [grid], "also when it is over"
        assert _list_by_local_status(conn, LocalJobsStatus.UNSUBMITTED) == []
        assert _list_by_local_status(conn) == [], "an empty set excludes every job"


def test_the_waiting_jobs_of_one_vo_are_counted_without_reading_those_of_others(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as conn:
        for number in range(50):
            waiting_jobs.put(conn, now, 100, asked=RequirementClass(vo="lhcb", cpu_time=number))
        waiting_jobs.put(conn, now, 3, asked=RequirementClass(vo="cms", cpu_time=60))
        conn.execute(text("ANALYZE"))
    plans: list[str] = []

    @event.listens_for(postgresql, "before_cursor_execute")
    def explain(*arguments: Any) -> None:
        if "waiting_jobs" in arguments[2]:
            rows = arguments[1].connection.execute(f"EXPLAIN (ANALYZE) {arguments[2]}", arguments[3])
            plans.append("\n".join(line for (line,) in rows))

    with database.reading(postgresql) as conn:
        [found] = task_queues_listing.list_waiting(conn, {"cms"})
    assert found.jobs == 3
    [plan] = plans
    assert max(map(int, re.findall(r"on waiting_jobs .*actual .*rows=(\d+)", plan))) == 3, plan
