"""Waiting jobs without an eligible queue, their pools, and the minor status that states it."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, bindparam, exists, func, select

from requirements.states import JobStatus
from taskqueue import ownership
from taskqueue.db import sql
from taskqueue.jobs import transitions
from taskqueue.schema.tables import jobs, pool_mappings, submit_pools
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_classes as classes
from taskqueue.schema.types import has_slot

#: Minor status of waiting jobs without an eligible queue.
NO_ELIGIBLE_QUEUE: Final = "No eligible queue"

#: LIMIT, not EXISTS: nearly always the first classes match, so it must not become a join of all.
_HAS_QUEUE = (
    select(classes.c.slot)
    .where(
        classes.c.vo == pool_mappings.c.vo,
        has_slot(pool_mappings.c.eligible, classes.c.slot),
        exists().where(members.c.queue_class_id == classes.c.queue_class_id),
    )
    .limit(1)
    .correlate(pool_mappings)
    .scalar_subquery()
)

#: Unresolved pools are left out.
RESOLVED = select(pool_mappings.c.pool_id, _HAS_QUEUE.is_not(None).label("has_queue")).where(
    sql.is_listed(pool_mappings.c.pool_id)
)

#: LIMIT, not EXISTS: a pool without a queue is rare, so it must not become a join with all jobs that wait.
_HAS_WAITING_JOB = (
    select(jobs.c.job_id)
    .where(jobs.c.submit_pool == pool_mappings.c.pool_id, jobs.c.status == JobStatus.WAITING.value)
    .limit(1)
    .correlate(pool_mappings)
    .scalar_subquery()
)
STUCK_POOLS = select(pool_mappings.c.pool_id, pool_mappings.c.vo).where(
    _HAS_QUEUE.is_(None), _HAS_WAITING_JOB.is_not(None)
)
STUCK_POOLS_BY_VO = STUCK_POOLS.with_only_columns(pool_mappings.c.vo, func.count()).group_by(
    pool_mappings.c.vo
)
_SOME = (
    select(jobs.c.job_id)
    .where(sql.is_listed(jobs.c.submit_pool), jobs.c.status == JobStatus.WAITING.value)
    .limit(bindparam("most"))
)
WAITING = select(func.count()).select_from(_SOME.subquery())

#: Whether a job has a minor status, or another one.
_HAS_MINOR = {
    True: jobs.c.minor_status == bindparam("minor"),
    False: jobs.c.minor_status != bindparam("minor"),
}
_IN_POOL = (
    select(jobs.c.job_id)
    .where(
        jobs.c.submit_pool == bindparam("pool_id"),
        jobs.c.status == JobStatus.WAITING.value,
        jobs.c.job_id > bindparam("after"),
    )
    .order_by(jobs.c.job_id)
    .limit(bindparam("most"))
)
_OF_POOL = exists().where(
    jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.status == JobStatus.WAITING.value
)
_POOLS = select(submit_pools.c.pool_id).where(sql.is_listed(submit_pools.c.pool_id))
POOLS_WITH_STATUS = {saying: _POOLS.where(_OF_POOL.where(has)) for saying, has in _HAS_MINOR.items()}
JOBS_WITH_STATUS = {saying: _IN_POOL.where(has) for saying, has in _HAS_MINOR.items()}
_STUCK = (
    select(jobs.c.job_id)
    .join(pool_mappings, pool_mappings.c.pool_id == jobs.c.submit_pool)
    .where(sql.is_listed(jobs.c.job_id), jobs.c.status == JobStatus.WAITING.value, _HAS_QUEUE.is_(None))
)


def read_has_queue(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, bool]:
    """Whether a queue is eligible now, for each of the pools that is resolved."""
    return {row.pool_id: bool(row.has_queue) for row in sql.read_batches(conn, RESOLVED, pool_ids)}


def list_stuck_pools(conn: Connection, vos: Collection[str] | None) -> Mapping[str, str]:
    """Resolved pools of some VOs (None: all) in which jobs wait and no queue is eligible, with their VOs."""
    named = ownership.match_values({pool_mappings.c.vo: vos})
    return {row.pool_id: row.vo for row in conn.execute(STUCK_POOLS.where(*named))}


def count_stuck_pools(conn: Connection) -> Mapping[str, int]:
    """The number of these pools, by VO; VOs that have none are left out."""
    return {vo: count for vo, count in conn.execute(STUCK_POOLS_BY_VO)}  # noqa: C416  (rows are no pairs for mypy)


def count_waiting_jobs(conn: Connection, pool_ids: Collection[str], *, most: int) -> int:
    """Number of waiting jobs in these pools, up to `most`."""
    found = 0
    for ids in sql.split_batches(pool_ids):
        found += conn.execute(WAITING, {"ids": ids, "most": most - found}).scalar_one()
        if found >= most:
            return most
    return found


def find_pools_with_status(
    conn: Connection, pool_ids: Collection[str], minor: str, *, saying: bool
) -> frozenset[str]:
    """Pools with a waiting job that has this minor status (`saying`), or another one."""
    rows = sql.read_batches(conn, POOLS_WITH_STATUS[saying], pool_ids, minor=minor)
    return frozenset(row.pool_id for row in rows)


def list_waiting_jobs(
    conn: Connection, pool_id: str, minor: str, *, saying: bool, after: int = 0
) -> list[int]:
    """A page of waiting jobs of a pool with this minor status (`saying`), or another one; their ids."""
    values = {"pool_id": pool_id, "minor": minor, "after": after, "most": sql.BATCH_SIZE}
    return list(conn.execute(JOBS_WITH_STATUS[saying], values).scalars())


def set_minor_status(
    conn: Connection, job_ids: Collection[int], minor: str, *, source: str, now: datetime
) -> int:
    """Set the minor status of the jobs that still wait; how many."""
    moved = transitions.move_jobs(
        conn,
        job_ids,
        JobStatus.WAITING,
        minor=minor,
        source=source,
        now=now,
        from_states=frozenset({JobStatus.WAITING}),
    )
    return len(moved)


def mark_stuck(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> None:
    """Correct the minor status of those of the jobs that have come back to a pool without an eligible queue.

    The pool agent corrects that of the jobs that wait while their pool loses its last queue.
    """
    stuck = [row.job_id for row in sql.read_batches(conn, _STUCK, job_ids)]
    set_minor_status(conn, stuck, NO_ELIGIBLE_QUEUE, source=source, now=now)
