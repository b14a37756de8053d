"""Jobs that wait although no queue of the configuration is eligible for them, and those that did."""

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, exists, func, select

from taskqueue import batches, transitions
from taskqueue.class_sets import has
from taskqueue.id_lists import OfIds
from taskqueue.states import JobStatus
from taskqueue.tables import jobs, pool_mappings, submit_pools
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_classes as classes

#: LIMIT, not EXISTS: nearly always the first classes answer, so it must not become a join of all.
_HAS_QUEUE = (
    select(classes.c.slot)
    .where(
        classes.c.vo == pool_mappings.c.vo,
        has(pool_mappings.c.eligible, classes.c.slot),
        exists().where(members.c.queue_class_id == classes.c.queue_class_id),
    )
    .limit(1)
    .correlate(pool_mappings)
    .scalar_subquery()
)

#: Pools that are not resolved yet are in neither state.
RESOLVED = OfIds(
    pool_mappings.c.pool_id,
    select(pool_mappings.c.pool_id, _HAS_QUEUE.is_not(None).label("has_queue")).where,
)

_vo_named = pool_mappings.c.vo.in_(bindparam("vos", expanding=True))
WITHOUT_QUEUE = select(pool_mappings.c.pool_id).where(_HAS_QUEUE.is_(None))
WITHOUT_QUEUE_OF = WITHOUT_QUEUE.where(_vo_named)
_SOME = (
    select(jobs.c.job_id)
    .where(
        jobs.c.submit_pool.in_(bindparam("pool_ids", expanding=True)),
        jobs.c.status == JobStatus.WAITING.value,
    )
    .limit(bindparam("most"))
)
WAITING = select(func.count()).select_from(_SOME.subquery())

_minor = jobs.c.minor_status
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
_POOLS = select(submit_pools.c.pool_id)
POOLS_THAT_SAY = OfIds(
    submit_pools.c.pool_id, _POOLS.where(_OF_POOL.where(_minor == bindparam("minor"))).where
)
POOLS_THAT_DO_NOT_SAY = OfIds(
    submit_pools.c.pool_id, _POOLS.where(_OF_POOL.where(_minor != bindparam("minor"))).where
)
THAT_SAY = _IN_POOL.where(_minor == bindparam("minor"))
THAT_DO_NOT_SAY = _IN_POOL.where(_minor != bindparam("minor"))


def have_queue(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, bool]:
    """For each of the pools that is resolved, whether some queue is eligible for it now."""
    return {
        row.pool_id: bool(row.has_queue)
        for ids in batches.of(pool_ids)
        for row in conn.execute(RESOLVED.of(conn), {"ids": ids})
    }


def pools_without_queue(conn: Connection, vos: Collection[str] | None) -> list[str]:
    """The pools of some VOs, or of all, that are resolved and have no queue now."""
    if vos is None:
        return list(conn.execute(WITHOUT_QUEUE).scalars())
    return list(conn.execute(WITHOUT_QUEUE_OF, {"vos": sorted(vos)}).scalars())


def count_waiting(conn: Connection, pool_ids: Collection[str], *, most: int) -> int:
    """How many jobs wait in these pools, counted up to `most`."""
    found = 0
    for ids in batches.of(pool_ids):
        found += conn.execute(WAITING, {"pool_ids": ids, "most": most - found}).scalar_one()
        if found >= most:
            return most
    return found


def pools_with(conn: Connection, pool_ids: Collection[str], minor: str, *, saying: bool) -> frozenset[str]:
    """Those of the pools with a waiting job that has this minor status, or that has another."""
    statement = (POOLS_THAT_SAY if saying else POOLS_THAT_DO_NOT_SAY).of(conn)
    return frozenset(
        pool_id
        for ids in batches.of(pool_ids)
        for pool_id in conn.execute(statement, {"ids": ids, "minor": minor}).scalars()
    )


def waiting(
    conn: Connection, pool_id: str, minor: str, *, saying: bool, after: int = 0, most: int = batches.MOST
) -> list[int]:
    """A page of the ids of waiting jobs of a pool that have this minor status, or that have another."""
    statement = THAT_SAY if saying else THAT_DO_NOT_SAY
    values = {"pool_id": pool_id, "minor": minor, "after": after, "most": most}
    return list(conn.execute(statement, values).scalars())


def say(conn: Connection, job_ids: Collection[int], minor: str, *, source: str, now: datetime) -> int:
    """Give those of the jobs that still wait another minor status; how many."""
    moved = transitions.move(
        conn,
        job_ids,
        JobStatus.WAITING,
        minor=minor,
        source=source,
        now=now,
        from_states=frozenset({JobStatus.WAITING}),
    )
    return len(moved)
