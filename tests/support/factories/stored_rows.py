"""Rows that many tests need, stored the way the program stores them, or changed one by one past its rules."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, column, delete, insert, select, table, update

from cs_config.tree.address import QueueAddress
from requirements.requirement_class import RequirementClass
from requirements.states import HELD, JobStatus, may_come_from
from taskqueue.db import database
from taskqueue.errors import IllegalTransition
from taskqueue.jobs import control, jobs, submission, transitions
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.submission import NewJob
from taskqueue.pools import pools
from taskqueue.pools.pools import MappingChange, NewPool
from taskqueue.schema.tables import attempts, blobs, pilots, service_uptime
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.sites import closures
from taskqueue.task_queues import task_queues, watched_times
from tests.support.transactions import own_transaction


@own_transaction
def job_ids(
    conn: Connection,
    now: datetime,
    count: int = 1,
    *,
    vo: str = "lhcb",
    owner: str = "alice",
    sandbox: str | None = None,
) -> list[int]:
    """New jobs, Received."""
    description = Description(source="Executable = 'x';", body={"Executable": "x"}, sandbox=sandbox)
    new = [NewJob(vo=vo, owner=owner, owner_group=f"{vo}_user") for _ in range(count)]
    return submission.store_jobs(conn, [description], [(0, each) for each in new], now=now)


@own_transaction
def kill(conn: Connection, now: datetime, *killed: int) -> None:
    """Kill jobs, as their owner."""
    assert {*control.kill_jobs(conn, killed, source="alice", now=now)} == {*killed}


@own_transaction
def reschedule(conn: Connection, now: datetime, *rescheduled: int, maximum: int = 9) -> None:
    """Reschedule jobs, as their owner."""
    found = control.reschedule_jobs(conn, rescheduled, source="alice", now=now, maximum=maximum)
    assert {*found} == {*rescheduled}


@own_transaction
def job_in(conn: Connection, /, now: datetime, status: JobStatus, **about: str) -> int:
    """A new job that is put into a state, whatever way leads there."""
    [job_id] = job_ids(conn, now)
    force(conn, job_id, status=status.value, **about)
    return job_id


@own_transaction
def force(conn: Connection, /, job_id: int, **values: object) -> None:
    """Change a job's row past all rules."""
    conn.execute(update(jobs_table).where(jobs_table.c.job_id == job_id).values(**values))


def open_attempt(conn: Connection, job_id: int, now: datetime, epoch: int = 1) -> str:
    """An open attempt of a job; its lease."""
    lease = f"lease-{job_id}-{epoch}"
    conn.execute(
        insert(attempts).values(
            job_id=job_id,
            epoch=epoch,
            lease=lease,
            holder="pilot",
            vo="lhcb",
            opened_at=now,
            lease_expires_at=now,
        )
    )
    force(conn, job_id, epoch=epoch)
    return lease


def ban(
    engine: Engine,
    now: datetime,
    site: str = "A.B.ch",
    *,
    reason: str = "down",
    until: datetime | None = None,
) -> None:
    """Ban a site."""
    with database.writing(engine) as conn:
        closures.set_ban(conn, closures.Ban(site=site, reason=reason, author="op", at=now, until=until))


def service_up(engine: Engine, since: datetime, until: datetime, process: str = "serve") -> None:
    """A process of the service was up in that time, as it would have recorded it."""
    with database.writing(engine) as conn:
        conn.execute(insert(service_uptime).values(process=process, since=since, until=until))


def watched(engine: Engine, since: datetime, until: datetime, vo: str = "lhcb") -> None:
    """An agent looked at the task queues of a VO in that time, as it would have recorded it."""
    with database.writing(engine) as conn:
        watched_times.extend(conn, vo, since=since, until=until)


def lose_output(conn: Connection, lease: str) -> None:
    """What remains of an output whose commit was lost: the file, without rows."""
    query = select(attempts.c.output).where(attempts.c.lease == lease)
    digest = conn.execute(query).scalar_one()
    assert digest is not None
    conn.execute(update(attempts).where(attempts.c.lease == lease).values(output=None))
    conn.execute(delete(blobs).where(blobs.c.digest == digest))


@own_transaction
def remove(conn: Connection, ids: list[int]) -> None:
    """Take jobs out of the database past all rules."""
    conn.execute(delete(jobs_table).where(jobs_table.c.job_id.in_(ids)))


def force_pilot(conn: Connection, stamp: str, **values: object) -> None:
    """Change a pilot's row past all rules."""
    conn.execute(update(pilots).where(pilots.c.stamp == stamp).values(**values))


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
        force(conn, each.job_id, task_queue_id=task_queue_id)
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
