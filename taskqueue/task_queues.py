"""Task queues: the waiting jobs of one owner and group with one requirement class.

`occupied` tells the matchers which of them are worth a try. Whoever puts jobs in holds the row's lock
until the commit, and whoever wants to call it empty takes that lock first and looks after that, in a
statement of its own: so no job is overlooked that was on its way in.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    bindparam,
    delete,
    exists,
    func,
    select,
    update,
)

from taskqueue import batches, changes, queue_places, shares
from taskqueue.bulk import BulkInsert, BulkUpdate
from taskqueue.classes import RequirementClass
from taskqueue.queue_places import Place
from taskqueue.tables import jobs, requirement_classes, task_queues, waiting_jobs

_IDS: BindParameter[int] = bindparam("ids", expanding=True)
# NO KEY UPDATE: a claim, which only refers to the row, is not held up.
LOCK = (
    select(task_queues.c.task_queue_id, task_queues.c.occupied)
    .where(task_queues.c.task_queue_id.in_(_IDS))
    .order_by(task_queues.c.task_queue_id)
    .with_for_update(key_share=True)
)
#: Whoever holds the lock puts jobs in: that task queue is not empty, and nobody waits for it here.
LOCK_IF_FREE = (
    select(task_queues.c.task_queue_id)
    .where(task_queues.c.task_queue_id.in_(_IDS), task_queues.c.occupied)
    .order_by(task_queues.c.task_queue_id)
    .with_for_update(key_share=True, skip_locked=True)
)
SET_OCCUPIED = (
    update(task_queues)
    .where(task_queues.c.task_queue_id.in_(_IDS))
    .values(occupied=bindparam("is_occupied"), changed_at=bindparam("now"))
)
WITH_JOBS = select(task_queues.c.task_queue_id).where(
    task_queues.c.task_queue_id.in_(_IDS),
    exists().where(waiting_jobs.c.task_queue_id == task_queues.c.task_queue_id),
)
PUT = BulkUpdate(jobs, key="job_id", varying=("task_queue_id",))
WAIT = BulkInsert(waiting_jobs, varying=("job_id", "task_queue_id", "priority"))
LEAVE = delete(waiting_jobs).where(waiting_jobs.c.job_id.in_(_IDS))
PLACES = (
    select(jobs.c.job_id, jobs.c.task_queue_id, jobs.c.priority)
    .where(jobs.c.job_id.in_(_IDS))
    .order_by(jobs.c.job_id)
)
WAITING_IN = (
    select(waiting_jobs.c.task_queue_id, func.count().label("waiting"))
    .where(waiting_jobs.c.task_queue_id.in_(_IDS))
    .group_by(waiting_jobs.c.task_queue_id)
)
FIRST_IN = (
    select(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == bindparam("task_queue_id"))
    .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    .limit(bindparam("most"))
)
HOLDING = select(waiting_jobs.c.task_queue_id).where(waiting_jobs.c.job_id == bindparam("job_id"))
_SHOWN = (
    task_queues.c.task_queue_id,
    task_queues.c.class_id,
    task_queues.c.vo,
    task_queues.c.owner,
    task_queues.c.owner_group,
    task_queues.c.priority,
    requirement_classes.c.definition,
)
_WITH_CLASS = select(*_SHOWN).join(
    requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id
)
OCCUPIED = _WITH_CLASS.where(task_queues.c.occupied)
OCCUPIED_OF = OCCUPIED.where(task_queues.c.task_queue_id.in_(_IDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingEntry:
    """A job that is ready to wait, and where."""

    job_id: int
    requirement_class: RequirementClass
    owner: str
    owner_group: str
    priority: float  #: the user's, 0 … 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueue:
    """A task queue that has jobs."""

    task_queue_id: int
    class_id: int
    requirement_class: RequirementClass
    vo: str
    owner: str
    owner_group: str
    priority: float  #: its weight in the lottery
    family: int  #: the same for those that weigh as much as all of them together; in this process only


def enqueue(conn: Connection, entries: Sequence[WaitingEntry], *, now: datetime) -> None:
    """Put jobs into their task queues, which are made if need be.

    In the transaction that makes the jobs Waiting: a job is Waiting if and only if it has its row here.
    """
    if not entries:
        return
    ids = hold(conn, {_place(entry) for entry in entries}, now=now)
    by_job = {entry.job_id: ids[_place(entry)] for entry in entries}
    PUT.execute(conn, {"job_id": list(by_job), "task_queue_id": list(by_job.values())})
    wait(conn, [(entry.job_id, by_job[entry.job_id], entry.priority) for entry in entries])


def hold(conn: Connection, wanted: Collection[Place], *, now: datetime) -> Mapping[Place, int]:
    """The task queues of these places, made if need be; none is removed or called empty before the commit."""
    while True:
        ids = queue_places.ensure(conn, wanted, now=now)
        if len(ids) == len(wanted) and _occupy(conn, set(ids.values()), now) == len(wanted):
            return ids
        # What was not used for long was removed under our hands: it is made anew.


def wait(conn: Connection, entries: Sequence[tuple[int, int, float]]) -> None:
    """Let jobs wait in task queues that `hold` gave: id of the job and of the task queue, and priority."""
    job_ids, task_queue_ids, priorities = zip(*entries, strict=True)
    WAIT.execute(conn, {"job_id": job_ids, "task_queue_id": task_queue_ids, "priority": priorities})


def _place(entry: WaitingEntry) -> Place:
    return entry.requirement_class, entry.owner_group, entry.owner


def enqueue_again(conn: Connection, job_ids: Collection[int], *, now: datetime) -> None:
    """Put jobs back where they waited before, at their old place: their lease ended before they began."""
    for ids in batches.of(job_ids):
        rows = conn.execute(PLACES, {"ids": ids}).all()
        _occupy(conn, {row.task_queue_id for row in rows}, now)
        if rows:
            wait(conn, [(row.job_id, row.task_queue_id, row.priority) for row in rows])


def dequeue(conn: Connection, job_ids: Collection[int]) -> None:
    """Take jobs out that are not to run now: killed, deleted, rescheduled."""
    for ids in batches.of(job_ids):
        conn.execute(LEAVE, {"ids": ids})


def mark_empty(conn: Connection, task_queue_ids: Collection[int], *, now: datetime) -> None:
    """Tell the matchers not to try these any more, as far as they really are empty."""
    for ids in batches.of(task_queue_ids):
        locked = set(conn.execute(LOCK_IF_FREE, {"ids": ids}).scalars())
        if not locked:
            continue
        # Only a statement that begins after we have the lock sees all that was put in before.
        empty = locked - set(conn.execute(WITH_JOBS, {"ids": sorted(locked)}).scalars())
        _set_occupied(conn, empty, now, is_occupied=False)


def occupied(conn: Connection) -> list[TaskQueue]:
    """All task queues that may have jobs."""
    return [from_row(row) for row in conn.execute(OCCUPIED)]


def occupied_of(conn: Connection, task_queue_ids: Collection[int]) -> list[TaskQueue]:
    """Those of the task queues that may have jobs."""
    found: list[TaskQueue] = []
    for ids in batches.of(task_queue_ids):
        found += [from_row(row) for row in conn.execute(OCCUPIED_OF, {"ids": ids})]
    return found


def waiting_in(conn: Connection, task_queue_ids: Collection[int]) -> Mapping[int, int]:
    """How many jobs wait in each; those without any are left out."""
    found: dict[int, int] = {}
    for ids in batches.of(task_queue_ids):
        found |= {row.task_queue_id: row.waiting for row in conn.execute(WAITING_IN, {"ids": ids})}
    return found


def holding(conn: Connection, job_id: int) -> int | None:
    """The task queue that a job waits in; None: it does not wait."""
    return conn.execute(HOLDING, {"job_id": job_id}).scalar_one_or_none()


def first_jobs(conn: Connection, task_queue_id: int, most: int) -> list[int]:
    """The jobs that would be handed out first, in order."""
    return list(conn.execute(FIRST_IN, {"task_queue_id": task_queue_id, "most": most}).scalars())


def _occupy(conn: Connection, task_queue_ids: Collection[int], now: datetime) -> int:
    """Lock task queues that get jobs; how many there are, since one may have been removed just now."""
    found = 0
    for ids in batches.of(task_queue_ids):
        rows = conn.execute(LOCK, {"ids": ids}).all()
        _set_occupied(conn, {row.task_queue_id for row in rows if not row.occupied}, now, is_occupied=True)
        found += len(rows)
    return found


def _set_occupied(conn: Connection, ids: Collection[int], now: datetime, *, is_occupied: bool) -> None:
    if ids:
        conn.execute(SET_OCCUPIED, {"ids": sorted(ids), "is_occupied": is_occupied, "now": now})
        changes.append(conn, changes.TASK_QUEUE, [str(each) for each in ids], now=now)


def from_row(row: Row[*tuple[Any, ...]]) -> TaskQueue:
    """A task queue from a row of `OCCUPIED`."""
    asked = RequirementClass.from_json(row.definition)
    return TaskQueue(
        task_queue_id=row.task_queue_id,
        class_id=row.class_id,
        requirement_class=asked,
        vo=row.vo,
        owner=row.owner,
        owner_group=row.owner_group,
        priority=row.priority,
        family=hash((row.owner_group, row.owner, shares.family(asked))),
    )
