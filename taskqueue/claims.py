"""The claim: take jobs from their task queues so that no one else can.

Whoever deletes a job's waiting row has the job. What must hold is stated again here, on the tables: that
the job still waits, and that its pool may run at the queue that asks. So whatever a matcher remembers
wrongly can waste a try, but never hand out a wrong job. Rows that another transaction holds are passed
over, not waited for: claims cannot deadlock. What they passed over may come free again, which `left`
tells from "gone".
"""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    exists,
    insert,
    or_,
    select,
    update,
)

from taskqueue import log, placeholders
from taskqueue.log import LogEntry
from taskqueue.states import JobStatus
from taskqueue.tables import attempts, descriptions, jobs, pool_queue_classes, waiting_jobs

SOURCE = "Matcher"
ASSIGNED = "Assigned"
_LEASE_BYTES = 24

_QUEUE_CLASSES: BindParameter[int] = bindparam("queue_class_ids", expanding=True)
_POOLS: BindParameter[str] = bindparam("pools", expanding=True)
_JOB_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)

#: The current mapping decides, not what the matcher remembers of it.
_MAY_RUN_HERE: ColumnElement[bool] = or_(
    jobs.c.submit_pool.is_(None),
    exists().where(
        pool_queue_classes.c.pool_id == jobs.c.submit_pool,
        pool_queue_classes.c.queue_class_id.in_(_QUEUE_CLASSES),
    ),
    jobs.c.submit_pool.in_(_POOLS),
)


def _claimable(*columns: ColumnElement[int]) -> Select[int]:
    return (
        select(*columns)
        .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
        .where(jobs.c.status == JobStatus.WAITING.value, _MAY_RUN_HERE)
    )


#: The user's priority first, then first in, first out.
PICK = (
    _claimable(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == bindparam("task_queue_id"))
    .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    .limit(bindparam("most"))
)
_CLAIMED = (jobs.c.job_id, jobs.c.epoch, jobs.c.vo, jobs.c.description_id, jobs.c.parameters)
_GIVEN = {
    "status": JobStatus.MATCHED.value,
    "minor_status": ASSIGNED,
    "application_status": "",
    "epoch": jobs.c.epoch + 1,
    "site": bindparam("at_site"),
    "updated_at": bindparam("now"),
}


def _take_postgresql() -> Any:
    # NO KEY UPDATE: a log row on its way, which only refers to the job, does not make us pass it over.
    picked = PICK.with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True).cte("picked")
    taken = (
        delete(waiting_jobs)
        .where(waiting_jobs.c.job_id.in_(select(picked.c.job_id)))
        .returning(waiting_jobs.c.job_id)
        .cte("taken")
    )
    return (
        update(jobs)
        .where(jobs.c.job_id == taken.c.job_id, jobs.c.status == JobStatus.WAITING.value)
        .values(_GIVEN)
        .returning(*_CLAIMED)
    )


TAKE_POSTGRESQL = _take_postgresql()
# SQLite has one writer at a time: what was picked is still there.
LEAVE = delete(waiting_jobs).where(waiting_jobs.c.job_id.in_(_JOB_IDS))
TAKE_SQLITE = (
    update(jobs)
    .where(jobs.c.job_id.in_(_JOB_IDS), jobs.c.status == JobStatus.WAITING.value)
    .values(_GIVEN)
    .returning(*_CLAIMED)
)
OPEN = insert(attempts)
LEFT = (
    _claimable(waiting_jobs.c.task_queue_id)
    .where(waiting_jobs.c.task_queue_id.in_(bindparam("task_queue_ids", expanding=True)))
    .distinct()
)
DESCRIPTIONS = select(descriptions.c.description_id, descriptions.c.body, descriptions.c.sandbox).where(
    descriptions.c.description_id.in_(bindparam("ids", expanding=True))
)
STILL_HELD = (
    select(*_CLAIMED, attempts.c.lease, attempts.c.lease_expires_at)
    .join(attempts, (attempts.c.job_id == jobs.c.job_id) & (attempts.c.epoch == jobs.c.epoch))
    .where(
        jobs.c.job_id.in_(_JOB_IDS),
        attempts.c.closed_at.is_(None),
        attempts.c.holder == bindparam("holder"),
    )
    .order_by(jobs.c.job_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job would run, and what may run there."""

    site: str
    ce: str
    queue: str
    queue_class_ids: frozenset[int]  #: of the stated queue, one for each VO that it serves; its pools count
    pools: frozenset[str]  #: where no queue was stated: those with an eligible queue at the stated place


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who gets the jobs, and for how long."""

    subject: str  #: of the token
    stamp: str | None  #: of the pilot
    lease_time: timedelta  #: until it must have begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A job in the hands of a pilot."""

    job_id: int
    epoch: int
    vo: str
    lease: str
    lease_expires_at: datetime
    description: Mapping[str, Any]  #: placeholders filled
    sandbox: str | None  #: digest of the input sandbox


def claim(
    conn: Connection,
    task_queue_ids: Sequence[int],
    count: int,
    *,
    place: Place,
    holder: Holder,
    now: datetime,
) -> list[Claimed]:
    """Take up to `count` jobs, from the first task queue that has any, then from the next.

    In one transaction with attempt, lease and log: either all of it happened, or nothing.
    """
    rows: list[Row[*tuple[Any, ...]]] = []
    for task_queue_id in task_queue_ids:
        if len(rows) >= count:
            break
        rows += _take(conn, task_queue_id, count - len(rows), place, now)
    if not rows:
        return []
    expires = now + holder.lease_time
    leases = {row.job_id: secrets.token_hex(_LEASE_BYTES) for row in rows}
    conn.execute(OPEN, [_opened(row, leases[row.job_id], place, holder, now, expires) for row in rows])
    log.append(conn, [_logged(row, now) for row in rows])
    return _claimed(conn, [(row, leases[row.job_id], expires) for row in rows])


def left(conn: Connection, task_queue_ids: Collection[int], *, place: Place) -> list[int]:
    """Those of the task queues that have a job for this place, though perhaps in another's hands just now."""
    if not task_queue_ids:
        return []
    values = {"task_queue_ids": sorted(task_queue_ids), **_where(place)}
    return list(conn.execute(LEFT, values).scalars())


def still_held(conn: Connection, job_ids: Collection[int], *, subject: str) -> list[Claimed]:
    """Those of the jobs that this holder has still: what a lost answer said."""
    rows = conn.execute(STILL_HELD, {"job_ids": sorted(job_ids), "holder": subject}).all()
    return _claimed(conn, [(row, row.lease, row.lease_expires_at) for row in rows])


def _take(
    conn: Connection, task_queue_id: int, most: int, place: Place, now: datetime
) -> Sequence[Row[*tuple[Any, ...]]]:
    picking = {"task_queue_id": task_queue_id, "most": most, **_where(place)}
    giving = {"at_site": place.site or "ANY", "now": now}
    if conn.dialect.name != "sqlite":
        return conn.execute(TAKE_POSTGRESQL, picking | giving).all()
    job_ids = conn.execute(PICK, picking).scalars().all()
    if not job_ids:
        return []
    conn.execute(LEAVE, {"job_ids": job_ids})
    return conn.execute(TAKE_SQLITE, {"job_ids": job_ids, **giving}).all()


def _where(place: Place) -> dict[str, object]:
    return {"queue_class_ids": sorted(place.queue_class_ids), "pools": sorted(place.pools)}


def _opened(
    row: Row[*tuple[Any, ...]], lease: str, place: Place, holder: Holder, now: datetime, expires: datetime
) -> dict[str, object]:
    return {
        "job_id": row.job_id,
        "epoch": row.epoch,
        "lease": lease,
        "holder": holder.subject,
        "stamp": holder.stamp,
        "vo": row.vo,
        "site": place.site,
        "ce": place.ce,
        "queue": place.queue,
        "opened_at": now,
        "lease_expires_at": expires,
    }


def _logged(row: Row[*tuple[Any, ...]], now: datetime) -> LogEntry:
    return LogEntry(
        job_id=row.job_id,
        at=now,
        from_status=JobStatus.WAITING,
        to_status=JobStatus.MATCHED,
        minor_status=ASSIGNED,
        source=SOURCE,
        epoch=row.epoch,
    )


def _claimed(conn: Connection, rows: Sequence[tuple[Row[*tuple[Any, ...]], str, datetime]]) -> list[Claimed]:
    ids = sorted({row.description_id for row, _, _ in rows})
    known = {each.description_id: each for each in conn.execute(DESCRIPTIONS, {"ids": ids})}
    found = []
    for row, lease, expires in rows:
        written = known[row.description_id]
        parameters = json.loads(row.parameters) if row.parameters else None
        found.append(
            Claimed(
                job_id=row.job_id,
                epoch=row.epoch,
                vo=row.vo,
                lease=lease,
                lease_expires_at=expires,
                description=placeholders.fill(json.loads(written.body), parameters),
                sandbox=written.sandbox,
            )
        )
    return found
