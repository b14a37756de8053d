"""The claim: take jobs from their task queues so that no one else can.

Whoever deletes a job's waiting row has the job. What must hold is stated again here, on the tables: that
the job still waits, and that its pool may run at the queue that asks. So whatever a matcher remembers
wrongly can waste a try, but never hand out a wrong job. Rows that another transaction holds are passed
over, not waited for: claims cannot deadlock. What they passed over may come free again, which `left`
tells from "gone".
"""

import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)

from taskqueue import log, placeholders
from taskqueue.log import LogEntry
from taskqueue.states import JobStatus
from taskqueue.tables import attempts, descriptions, jobs, pool_queue_classes, task_queues, waiting_jobs
from taskqueue.tables import queue_class_members as members

SOURCE = "Matcher"
ASSIGNED = "Assigned"
_LEASE_BYTES = 24

_JOB_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)
_AMONG: BindParameter[int] = bindparam("among", expanding=True)
#: Ids in one statement; SQLite takes no more than 32,766 values.
_BATCH = 1000
#: Jobs that are looked at in one statement before one of them is taken.
_PEEKED = 100

#: The current mapping decides, not what the matcher remembers of it: some queue of the stated place is
#: eligible. What is not stated is empty; without a site no queue is there.
_ELIGIBLE_HERE = (
    select(pool_queue_classes.c.pool_id)
    .join(members, members.c.queue_class_id == pool_queue_classes.c.queue_class_id)
    .where(
        pool_queue_classes.c.pool_id == jobs.c.submit_pool,
        members.c.vo == jobs.c.vo,
        members.c.site == bindparam("here_site"),
        or_(bindparam("here_ce") == "", members.c.ce == bindparam("here_ce")),
        or_(bindparam("here_queue") == "", members.c.queue == bindparam("here_queue")),
    )
    .correlate(jobs)
)
_MAY_RUN_HERE: ColumnElement[bool] = or_(jobs.c.submit_pool.is_(None), _ELIGIBLE_HERE.exists())


def _claimable(column: ColumnElement[int]) -> Select[int]:
    return (
        select(column)
        .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
        .where(jobs.c.status == JobStatus.WAITING.value, _MAY_RUN_HERE)
    )


#: The user's priority first, then first in, first out.
PICK = (
    _claimable(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == bindparam("the_task_queue"))
    .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    .limit(bindparam("most"))
)
#: Only some jobs of the task queue.
PICK_AMONG = PICK.where(waiting_jobs.c.job_id.in_(_AMONG))
#: The next jobs in this order, with what is asked about them before they are taken.
PEEK = (
    _claimable(waiting_jobs.c.job_id)
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .add_columns(
        waiting_jobs.c.priority.label("rank"),
        *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.priority),
        *(jobs.c.job_name, jobs.c.job_type, jobs.c.job_group, descriptions.c.body),
    )
    .where(
        waiting_jobs.c.task_queue_id == bindparam("the_task_queue"),
        or_(
            waiting_jobs.c.priority < bindparam("after_priority"),
            and_(
                waiting_jobs.c.priority == bindparam("after_priority"),
                waiting_jobs.c.job_id > bindparam("after_job"),
            ),
        ),
    )
    .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    .limit(_PEEKED)
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


def _take_postgresql(pick: Select[int]) -> Any:
    # NO KEY UPDATE: a log row on its way, which only refers to the job, does not make us pass it over.
    picked = pick.with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True).cte("picked")
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


TAKE_POSTGRESQL = _take_postgresql(PICK)
TAKE_AMONG_POSTGRESQL = _take_postgresql(PICK_AMONG)
# SQLite has one writer at a time: what was picked is still there.
LEAVE = delete(waiting_jobs).where(waiting_jobs.c.job_id.in_(_JOB_IDS))
TAKE_SQLITE = (
    update(jobs)
    .where(jobs.c.job_id.in_(_JOB_IDS), jobs.c.status == JobStatus.WAITING.value)
    .values(_GIVEN)
    .returning(*_CLAIMED)
)
OPEN = insert(attempts)
#: EXISTS ends at the first job of each; a task queue may hold hundreds of thousands.
LEFT = select(task_queues.c.task_queue_id).where(
    task_queues.c.task_queue_id.in_(bindparam("task_queue_ids", expanding=True)),
    _claimable(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == task_queues.c.task_queue_id)
    .correlate(task_queues)
    .exists(),
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
    """Where a job would run; empty: not stated."""

    site: str
    ce: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who gets the jobs, and for how long."""

    subject: str  #: of the token
    stamp: str | None  #: of the pilot
    lease_time: timedelta  #: until it must have begun


#: A job that nobody else gets any more: its id, new epoch, VO, description and parameters.
Taken = Row[*tuple[Any, ...]]
#: A job that may be taken: its id, VO, owner, group, priority, name, type, job group and description.
Waiting = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A job with the lease that it is held by."""

    row: Taken
    lease: str
    expires: datetime


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


def take(
    conn: Connection, task_queue_ids: Iterable[int], count: int, *, place: Place, now: datetime
) -> list[Taken]:
    """Take up to `count` jobs, from the first task queue that has any, then from the next.

    `hand_over` has to follow in the same transaction: a job that is Matched has an open attempt.
    """
    taken: list[Taken] = []
    for task_queue_id in task_queue_ids:
        if len(taken) >= count:
            break
        taken += _take(conn, task_queue_id, count - len(taken), place, now)
    return taken


def take_among(
    conn: Connection, task_queue_id: int, among: Collection[int], *, place: Place, now: datetime
) -> Sequence[Taken]:
    """Take those of some jobs of a task queue that are still there."""
    return _take(conn, task_queue_id, len(among), place, now, among=among)


def peek(conn: Connection, task_queue_id: int, *, place: Place) -> Iterator[Waiting]:
    """The jobs of a task queue in the order in which they would be taken."""
    after: tuple[float, int] = (float("inf"), 0)
    while True:
        values = {"the_task_queue": task_queue_id, "after_priority": after[0], "after_job": after[1]}
        rows = conn.execute(PEEK, {**values, **_where(place)}).all()
        yield from rows
        if len(rows) < _PEEKED:
            return
        after = (rows[-1].rank, rows[-1].job_id)


def hand_over(
    conn: Connection, given: Sequence[tuple[Taken, Place, Holder]], *, now: datetime
) -> list[Claimed]:
    """Open an attempt with a lease for each job that was taken, and log it."""
    if not given:
        return []
    held = [
        _Held(
            row=row,
            lease=secrets.token_hex(_LEASE_BYTES),
            expires=now + holder.lease_time,
        )
        for row, _, holder in given
    ]
    opened = [_opened(each, place, holder, now) for each, (_, place, holder) in zip(held, given, strict=True)]
    conn.execute(OPEN, opened)
    log.append(conn, [_logged(each.row, now) for each in held])
    return _claimed(conn, held)


def left(conn: Connection, task_queue_ids: Collection[int], *, place: Place) -> frozenset[int]:
    """Those of the task queues that have a job for this place, though perhaps in another's hands just now."""
    ordered = sorted(set(task_queue_ids))
    found: set[int] = set()
    for start in range(0, len(ordered), _BATCH):
        values = {"task_queue_ids": ordered[start : start + _BATCH], **_where(place)}
        found.update(conn.execute(LEFT, values).scalars())
    return frozenset(found)


def still_held(conn: Connection, job_ids: Collection[int], *, subject: str) -> list[Claimed]:
    """Those of the jobs that this holder has still: what a lost answer said."""
    rows = conn.execute(STILL_HELD, {"job_ids": sorted(job_ids), "holder": subject}).all()
    return _claimed(conn, [_Held(row=row, lease=row.lease, expires=row.lease_expires_at) for row in rows])


def _take(
    conn: Connection,
    task_queue_id: int,
    most: int,
    place: Place,
    now: datetime,
    *,
    among: Collection[int] | None = None,
) -> Sequence[Taken]:
    picking: dict[str, object] = {"the_task_queue": task_queue_id, "most": most, **_where(place)}
    picking |= {} if among is None else {"among": sorted(among)}
    giving = {"at_site": place.site or "ANY", "now": now}
    if conn.dialect.name != "sqlite":
        take_them = TAKE_POSTGRESQL if among is None else TAKE_AMONG_POSTGRESQL
        return conn.execute(take_them, picking | giving).all()
    job_ids = conn.execute(PICK if among is None else PICK_AMONG, picking).scalars().all()
    if not job_ids:
        return []
    conn.execute(LEAVE, {"job_ids": job_ids})
    return conn.execute(TAKE_SQLITE, {"job_ids": job_ids, **giving}).all()


def _where(place: Place) -> dict[str, object]:
    return {"here_site": place.site, "here_ce": place.ce, "here_queue": place.queue}


def _opened(held: _Held, place: Place, holder: Holder, now: datetime) -> dict[str, object]:
    return {
        "job_id": held.row.job_id,
        "epoch": held.row.epoch,
        "lease": held.lease,
        "holder": holder.subject,
        "stamp": holder.stamp,
        "vo": held.row.vo,
        "site": place.site,
        "ce": place.ce,
        "queue": place.queue,
        "opened_at": now,
        "lease_expires_at": held.expires,
    }


def _logged(row: Taken, now: datetime) -> LogEntry:
    return LogEntry(
        job_id=row.job_id,
        at=now,
        from_status=JobStatus.WAITING,
        to_status=JobStatus.MATCHED,
        minor_status=ASSIGNED,
        source=SOURCE,
        epoch=row.epoch,
    )


def _claimed(conn: Connection, held: Sequence[_Held]) -> list[Claimed]:
    ids = sorted({each.row.description_id for each in held})
    written = {row.description_id: row for row in conn.execute(DESCRIPTIONS, {"ids": ids})}
    return [
        Claimed(
            job_id=each.row.job_id,
            epoch=each.row.epoch,
            vo=each.row.vo,
            lease=each.lease,
            lease_expires_at=each.expires,
            description=_filled(written[each.row.description_id].body, each.row.parameters),
            sandbox=written[each.row.description_id].sandbox,
        )
        for each in held
    ]


def _filled(body: str, parameters: str | None) -> Mapping[str, Any]:
    return placeholders.fill(json.loads(body), json.loads(parameters) if parameters else None)
