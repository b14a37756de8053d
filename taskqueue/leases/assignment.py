"""Assignment step by step: delete waiting rows and mark their jobs Matched, so that no one else gets them.

`opening` opens their attempts; `batched_claim.sql` does both in one statement, for most requests.

The transaction that deletes a job's waiting row owns the job. All conditions are stated again here, on the
tables: the job still waits, and a queue of the requesting location is eligible for its pool. So a stale
cache of a matcher can waste an attempt to claim, but never assign a wrong job. Rows locked by another
transaction are skipped (SKIP LOCKED), so claims cannot deadlock. Skipped rows may become free again;
`find_nonempty` distinguishes them from rows that are gone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    or_,
    select,
    update,
)

from requirements.resource import Location
from requirements.states import JobStatus
from taskqueue.db import sql
from taskqueue.schema.tables import descriptions, installation, jobs, queue_classes, task_queues, waiting_jobs
from taskqueue.schema.tables import pool_mappings as mapped
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_class_versions as versions
from taskqueue.schema.types import has_slot

ASSIGNED: Final = "Assigned"


def is_eligible(*, site: Any, ce: Any, queue: Any, checked: Any) -> ColumnElement[bool]:
    """Condition on a job: the stored mapping has a queue of the location that is eligible for its pool.

    Checked on the tables, since a matcher's cache may be stale. An empty `ce` or `queue` matches any; without
    a site no queue matches. Where the node decides (`undecided`), its facts must have been checked with the
    mapping's configuration version; if the queue is not known, at every queue where the pilot may be.
    """
    here = (
        select(mapped.c.pool_id)
        .join(members, members.c.vo == mapped.c.vo)
        .join(queue_classes, queue_classes.c.queue_class_id == members.c.queue_class_id)
        .where(
            mapped.c.pool_id == jobs.c.submit_pool,
            has_slot(mapped.c.eligible, queue_classes.c.slot),
            members.c.vo == jobs.c.vo,
            members.c.site == site,
            or_(ce == "", members.c.ce == ce),
            or_(queue == "", members.c.queue == queue),
        )
        .correlate(jobs)
    )
    current = (
        select(versions.c.config_version).where(versions.c.vo == jobs.c.vo).correlate(jobs).scalar_subquery()
    )
    # coalesce: negated below, so it must never be null.
    fits = or_(
        ~has_slot(mapped.c.undecided, queue_classes.c.slot), func.coalesce(current == checked, false())
    )
    everywhere = or_(queue != "", ~here.where(~fits).exists())
    return or_(jobs.c.submit_pool.is_(None), and_(here.where(fits).exists(), everywhere))


#: Binds of the location that has to be eligible; `bind_location` gives the values.
LOCATION_BINDS: Mapping[str, BindParameter[Any]] = {
    **{name: bindparam(f"here_{name}", type_=Text) for name in ("site", "ce", "queue")},
    "checked": bindparam("here_checked", type_=Integer),
}


def select_claimable(task_queue_id: Any, *, site: Any, ce: Any, queue: Any, checked: Any) -> Select[int]:
    """Jobs of a task queue that may be assigned to a location, in claim order.

    That is the user's priority, then first in, first out. `batched_claim.sql` does the same.
    """
    return (
        select(waiting_jobs.c.job_id)
        .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
        .where(
            waiting_jobs.c.task_queue_id == task_queue_id,
            jobs.c.status == JobStatus.WAITING.value,
            is_eligible(site=site, ce=ce, queue=queue, checked=checked),
        )
        .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    )


CLAIMED_COLUMNS = (jobs.c.job_id, jobs.c.epoch, jobs.c.vo, jobs.c.description_id, jobs.c.parameters)
#: Lowest epoch after a loss of commits: the lost ones may have used lower numbers.
_EPOCH_FLOOR = select(installation.c.epoch_floor).scalar_subquery()


#: New values of an assigned job, except its site.
MATCHED_VALUES: Mapping[str, Any] = {
    "status": JobStatus.MATCHED.value,
    "minor_status": ASSIGNED,
    "application_status": "",
    "epoch": case((jobs.c.epoch < _EPOCH_FLOOR, _EPOCH_FLOOR), else_=jobs.c.epoch) + 1,
    "updated_at": bindparam("now"),
}


# NO KEY UPDATE: an insert of a log row, which only references the job, must not make us skip it. SQLite locks
# no rows: it has one writer.
LOCKED = select_claimable(bindparam("the_task_queue"), **LOCATION_BINDS).with_for_update(
    of=[waiting_jobs, jobs], skip_locked=True, key_share=True
)
#: The first ones of a task queue.
LOCK_FIRST = LOCKED.limit(bindparam("most"))
LEAVE = delete(waiting_jobs).where(sql.is_listed(waiting_jobs.c.job_id))
MATCH = (
    update(jobs)
    .where(sql.is_listed(jobs.c.job_id), jobs.c.status == JobStatus.WAITING.value)
    .values(site=bindparam("at_site"), **MATCHED_VALUES)
    .returning(*CLAIMED_COLUMNS)
)


def select_nonempty(*conditions: ColumnElement[bool]) -> Select[int]:
    """Task queues with an assignable job that fulfils the conditions.

    EXISTS stops at the first job of each; a task queue may hold hundreds of thousands.
    """
    jobs_left = select_claimable(task_queues.c.task_queue_id, **LOCATION_BINDS).where(*conditions)
    return select(task_queues.c.task_queue_id).where(
        task_queues.c.task_queue_id.in_(bindparam("ids", expanding=True)),
        jobs_left.order_by(None).correlate(task_queues).exists(),
    )


NONEMPTY = select_nonempty()


#: An assigned job: id, new epoch, VO, description id and parameters.
TakenRow = Row[*tuple[Any, ...]]


#: Bytes of descriptions that one claim for several jobs hands out, unless its first job alone has more.
MOST_BYTES: Final = 16 << 20
#: Bytes of a description above which its placeholders, each a job's id or value, are not counted.
_LONG: Final = 1 << 16
_IF_LONG: Final = 6
_ID: Final = 20
_written = sql.count_bytes(descriptions.c.body)
_places = _written - sql.count_bytes(func.replace(descriptions.c.body, "%", ""))
_values = func.coalesce(sql.count_bytes(jobs.c.parameters), 0) + _ID
SIZES = (
    select(
        jobs.c.job_id,
        case((_written > _LONG, _IF_LONG * _written), else_=_written + _places * _values).label("size"),
    )
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .where(sql.is_listed(jobs.c.job_id))
)


@dataclass(slots=True)
class DescriptionRoom:
    """Bytes that are left for the descriptions of one claim for several jobs."""

    left: int = MOST_BYTES

    def admit(self, conn: Connection, job_ids: Sequence[int]) -> Sequence[int]:
        """The first of these jobs, with placeholders filled, for which there is room; one at least."""
        if not job_ids:
            return job_ids
        sizes = {row.job_id: row.size for row in conn.execute(SIZES, {"ids": job_ids})}
        sums = list(accumulate(sizes[job_id] for job_id in job_ids))
        admitted = max(1, sum(each <= self.left for each in sums))
        self.left -= sums[admitted - 1]
        return job_ids[:admitted]


def take_jobs(
    conn: Connection,
    task_queue_ids: Iterable[int],
    count: int,
    *,
    place: Location,
    now: datetime,
    room: DescriptionRoom | None = None,
) -> list[TakenRow]:
    """Take up to `count` jobs from the task queues, in their order.

    Only so many as there is `room` for, but one at least.

    `opening.open_attempts` has to follow in the same transaction: a Matched job has an open attempt.
    """
    job_ids: list[int] = []
    for task_queue_id in dict.fromkeys(task_queue_ids):  # SKIP LOCKED skips no lock of our own
        if len(job_ids) >= count:
            break
        most = count - len(job_ids)
        values = {"the_task_queue": task_queue_id, "most": most, **bind_location(place)}
        job_ids += conn.execute(LOCK_FIRST, values).scalars()
    return take_locked(conn, job_ids, place=place, now=now, room=room)


def take_locked(
    conn: Connection,
    job_ids: Sequence[int],
    *,
    place: Location,
    now: datetime,
    room: DescriptionRoom | None = None,
) -> list[TakenRow]:
    """Take jobs that this transaction has locked by `LOCKED`, in this order, as far as there is room."""
    if room is not None:
        job_ids = room.admit(conn, job_ids)
    if not job_ids:
        return []
    conn.execute(LEAVE, {"ids": job_ids})
    values = {"ids": job_ids, "at_site": place.site or "ANY", "now": now}
    rows = {row.job_id: row for row in conn.execute(MATCH, values)}
    return [rows[job_id] for job_id in job_ids]


def find_nonempty(conn: Connection, task_queue_ids: Collection[int], *, place: Location) -> frozenset[int]:
    """Task queues with a job for this location; another transaction may have locked it."""
    return find_task_queues(conn, NONEMPTY, task_queue_ids, bind_location(place))


def find_task_queues(
    conn: Connection, statement: Select[int], task_queue_ids: Collection[int], values: Mapping[str, object]
) -> frozenset[int]:
    """Task queues found by a statement of `select_nonempty`."""
    return frozenset(row[0] for row in sql.read_batches(conn, statement, task_queue_ids, **values))


def bind_location(place: Location) -> dict[str, object]:
    """Values of `LOCATION_BINDS`."""
    return {f"here_{name}": getattr(place, name) for name in LOCATION_BINDS}
