"""Changes of single rows that tests make where the program makes many at once, or none."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, column, select, table

from cs_config.tree.address import QueueAddress
from requirements.requirement_class import RequirementClass
from requirements.states import HELD, JobStatus, may_come_from
from taskqueue.errors import IllegalTransition
from taskqueue.jobs import control, jobs, transitions
from taskqueue.pools import pools
from taskqueue.pools.pools import MappingChange, NewPool
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.task_queues import task_queues
from tests.support.factories import stored_rows


def set_status(
    conn: Connection,
    job_id: int,
    wanted: JobStatus,
    *,
    minor: str,
    application: str | None = None,
    source: str,
    now: datetime,
) -> None:
    """Put a job into a status that the table of steps allows, or the same one with another minor status."""
    transitions.lock_jobs(conn, [job_id])
    moved = transitions.move_jobs(
        conn,
        [job_id],
        wanted,
        minor=minor,
        application=application,
        source=source,
        now=now,
        from_states=may_come_from(wanted) | {wanted},
    )
    if not moved:
        raise IllegalTransition(job_id, current=jobs.get_job(conn, job_id).status, wanted=wanted)
    if wanted not in HELD:
        control._withdraw(conn, moved, wanted, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingEntry:
    """A job to be added to its task queue."""

    job_id: int
    requirement_class: RequirementClass
    owner: str
    owner_group: str
    priority: float


def enqueue(conn: Connection, entries: Sequence[WaitingEntry], *, now: datetime) -> None:
    """Add jobs to their task queues."""
    keys = [(each.requirement_class, each.owner_group, each.owner) for each in entries]
    ids = task_queues.hold_task_queues(conn, keys, now=now)
    for each, task_queue_id in zip(entries, ids, strict=True):
        stored_rows.force(conn, each.job_id, task_queue_id=task_queue_id)
    if entries:
        rows = [(each.job_id, place, each.priority) for each, place in zip(entries, ids, strict=True)]
        task_queues.add_waiting(conn, rows)


def touch_pool(
    conn: Connection, *, pool_id: str, vo: str, requirements_json: str, original_json: str, now: datetime
) -> bool:
    """Insert or touch one pool; whether it still has to be resolved."""
    pool = NewPool(pool_id=pool_id, vo=vo, requirements=requirements_json, original=original_json)
    return pool_id in pools.touch_pools(conn, [pool], now=now)


def store_pool_mapping(
    conn: Connection,
    *,
    pool_id: str,
    config_version: int,
    expiries: int = 0,
    queue_class_digests: Collection[str],
    undecided: Collection[str] = (),
    now: datetime,
) -> MappingChange | None:
    """Store the mapping of one pool; PoolNotFound."""
    changed = pools.store_mappings(
        conn,
        vo=pools.get_pool(conn, pool_id).vo,
        config_version=config_version,
        expiries=expiries,
        digests={pool_id: {digest: digest in undecided for digest in queue_class_digests}},
        now=now,
    )
    return None if changed is None else changed.get(pool_id)


#: The view of eligible queues, which only people read.
POOL_QUEUES = table("pool_queues", *map(column, ("pool_id", "site", "ce", "queue")))


def list_eligible_queues(conn: Connection, pool_id: str) -> list[QueueAddress]:
    """The queues that the view has for a pool, sorted."""
    queue = (POOL_QUEUES.c.site, POOL_QUEUES.c.ce, POOL_QUEUES.c.queue)
    rows = conn.execute(select(*queue).where(POOL_QUEUES.c.pool_id == pool_id).order_by(*queue))
    return [QueueAddress(site=row.site, ce=row.ce, queue=row.queue) for row in rows]


def find_class(conn: Connection, vo: str, queue: QueueAddress) -> int | None:
    """The queue class of a queue for a VO; None: the VO may not use it, or it does not exist."""
    own = (members.c.vo == vo, members.c.site == queue.site, members.c.ce == queue.ce)
    found: int | None = conn.execute(
        select(members.c.queue_class_id).where(*own, members.c.queue == queue.queue)
    ).scalar_one_or_none()
    return found


def count_jobs(conn: Connection, *statuses: JobStatus) -> int:
    """Number of stored jobs in these states, or of all."""
    states = conn.execute(select(jobs_table.c.status)).scalars().all()
    return sum(not statuses or status in statuses for status in states)
