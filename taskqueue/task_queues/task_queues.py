"""Task queues: the waiting jobs of one owner and group with one requirement class.

Requirement classes and task queues are inserted when the first job needs them. `occupied` marks the task
queues that matchers try. A transaction that adds jobs holds the row's lock until its commit; one that
clears the mark takes that lock first and checks in a later statement, so that no job being added is missed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Text,
    bindparam,
    cast,
    delete,
    exists,
    func,
    select,
    tuple_,
    update,
)

from requirements.requirement_class import RequirementClass
from taskqueue.db import sql
from taskqueue.schema.tables import jobs, requirement_classes, task_queues, waiting_jobs
from taskqueue.task_queues import change_feed, shares

#: Requirement class, owner group and owner: identifies a task queue.
TaskQueueKey = tuple[RequirementClass, str, str]

_DigestKey = tuple[str, str, str]  # digest of the class, owner group, owner


NEW_CLASS = sql.insert_or_skip(requirement_classes)
NEW_TASK_QUEUE = sql.insert_or_skip(task_queues)

CLASS_IDS = select(
    *(requirement_classes.c.digest, requirement_classes.c.class_id, requirement_classes.c.derived_with)
).where(sql.is_listed(requirement_classes.c.digest))
MARK_OUTDATED = (
    update(requirement_classes)
    .where(requirement_classes.c.class_id == bindparam("the_class"), requirement_classes.c.derived_with != "")
    .values(derived_with="")
)
#: The id behind the key.
TASK_QUEUE_IDS = select(
    task_queues.c.class_id, task_queues.c.owner_group, task_queues.c.owner, task_queues.c.task_queue_id
).where(tuple_(task_queues.c.class_id, task_queues.c.owner_group, task_queues.c.owner).in_(sql.KEYS))
# KEY SHARE: blocks only the removal of a class.
LOCK_CLASSES = (
    select(requirement_classes.c.class_id)
    .where(sql.is_listed(requirement_classes.c.class_id))
    .order_by(requirement_classes.c.class_id)
    .with_for_update(read=True, key_share=True)
)


def ensure_classes(conn: Connection, classes: Mapping[str, RequirementClass]) -> Mapping[str, int]:
    """Ids of classes by digest, inserted if missing.

    Those that other options gave as well are marked, to be derived again: columns of their jobs may differ.
    """
    found = sql.read_batches(conn, CLASS_IDS, classes)
    if missing := sorted(classes.keys() - {row.digest for row in found}):
        new = [classes[digest] for digest in missing]
        rows = [
            {
                "digest": each.digest,
                "vo": each.vo,
                "definition": each.to_json(),
                "derived_with": each.derived_with,
            }
            for each in new
        ]
        conn.execute(NEW_CLASS, rows)
        found = sql.read_batches(conn, CLASS_IDS, classes)
    if outdated := sorted(
        row.class_id for row in found if row.derived_with not in ("", classes[row.digest].derived_with)
    ):
        conn.execute(MARK_OUTDATED, [{"the_class": class_id} for class_id in outdated])
    return {row.digest: row.class_id for row in found}


def _ensure_task_queues(
    conn: Connection, wanted: Mapping[_DigestKey, TaskQueueKey], now: datetime
) -> Mapping[_DigestKey, int]:
    """Ids of the task queues, inserted if missing; without those that are being removed."""
    classes = ensure_classes(conn, {each.digest: each for each, _, _ in wanted.values()})
    keys = {(classes[key[0]], *key[1:]): key for key in wanted if key[0] in classes}
    found = sql.read_batches(conn, TASK_QUEUE_IDS, keys)
    missing = sorted(keys.keys() - {tuple(row[:-1]) for row in found})
    if missing and _lock_classes(conn, {class_id for class_id, _, _ in missing}):
        # Marked occupied when jobs are added, with an entry in the change feed.
        new = {"priority": 1.0, "occupied": False, "changed_at": now}
        rows = [
            {"class_id": key[0], "vo": wanted[keys[key]][0].vo, "owner_group": key[1], "owner": key[2], **new}
            for key in missing
        ]
        conn.execute(NEW_TASK_QUEUE, rows)
        found = sql.read_batches(conn, TASK_QUEUE_IDS, keys)
    return {keys[tuple(row[:-1])]: row.task_queue_id for row in found}


def _lock_classes(conn: Connection, class_ids: Collection[int]) -> bool:
    """Prevent the removal of classes before their task queues are inserted; False: one is gone."""
    return all(
        len(conn.execute(LOCK_CLASSES, {"ids": ids}).all()) == len(ids)
        for ids in sql.split_batches(class_ids)
    )


# NO KEY UPDATE: does not block a claim, which only references the row.
LOCK = (
    select(task_queues.c.task_queue_id, task_queues.c.occupied)
    .where(sql.is_listed(task_queues.c.task_queue_id))
    .order_by(task_queues.c.task_queue_id)
    .with_for_update(key_share=True)
)
#: SKIP LOCKED: the transaction that holds the lock adds jobs, so that task queue is not empty.
LOCK_IF_FREE = (
    select(task_queues.c.task_queue_id)
    .where(sql.is_listed(task_queues.c.task_queue_id), task_queues.c.occupied)
    .order_by(task_queues.c.task_queue_id)
    .with_for_update(key_share=True, skip_locked=True)
)
SET_OCCUPIED = (
    update(task_queues)
    .where(sql.is_listed(task_queues.c.task_queue_id))
    .values(occupied=bindparam("is_occupied"), changed_at=bindparam("now"))
)
WITH_JOBS = select(task_queues.c.task_queue_id).where(
    sql.is_listed(task_queues.c.task_queue_id),
    exists().where(waiting_jobs.c.task_queue_id == task_queues.c.task_queue_id),
)
ADD_WAITING = sql.bulk_insert(waiting_jobs, "job_id", "task_queue_id", "priority")
REMOVE_WAITING = delete(waiting_jobs).where(sql.is_listed(waiting_jobs.c.job_id))
WAITING_VALUES = (
    select(jobs.c.job_id, jobs.c.task_queue_id, jobs.c.priority)
    .where(sql.is_listed(jobs.c.job_id))
    .order_by(jobs.c.job_id)
)
WAITING_IN = (
    select(waiting_jobs.c.task_queue_id, func.count().label("waiting"))
    .where(sql.is_listed(waiting_jobs.c.task_queue_id))
    .group_by(waiting_jobs.c.task_queue_id)
)
_first = (
    select(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == task_queues.c.task_queue_id)
    .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    .limit(bindparam("most"))
    .correlate(task_queues)
    .subquery()
)
FIRST_IN = select(
    task_queues.c.task_queue_id,
    select(func.aggregate_strings(cast(_first.c.job_id, Text), ",")).scalar_subquery().label("job_ids"),
).where(sql.is_listed(task_queues.c.task_queue_id))
TASK_QUEUE_OF_JOB = select(waiting_jobs.c.task_queue_id).where(waiting_jobs.c.job_id == bindparam("job_id"))
_SELECTED = select(
    *(task_queues.c.task_queue_id, task_queues.c.class_id, task_queues.c.vo, task_queues.c.owner),
    *(task_queues.c.owner_group, task_queues.c.priority, task_queues.c.supply),
    requirement_classes.c.definition,
).join(requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id)
AMONG = _SELECTED.where(sql.is_listed(task_queues.c.task_queue_id))
OCCUPIED = _SELECTED.where(task_queues.c.occupied)
OCCUPIED_OF_VO = (
    select(task_queues.c.task_queue_id, task_queues.c.class_id)
    .where(
        task_queues.c.occupied,
        task_queues.c.vo == bindparam("the_vo"),
        task_queues.c.task_queue_id > bindparam("after"),
    )
    .order_by(task_queues.c.task_queue_id)
    .limit(bindparam("most"))
)
OCCUPIED_AMONG = OCCUPIED.where(sql.is_listed(task_queues.c.task_queue_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueue:
    """A task queue that may have jobs."""

    task_queue_id: int
    class_id: int
    requirement_class: RequirementClass
    vo: str
    owner: str
    owner_group: str
    priority: float  #: weight in the lottery
    family: int  #: equal for members of a family (see `shares`); valid in this process only
    #: Slots that came lately where its jobs may run; None: not counted, or its owner's priorities decide.
    supply: int | None = None


def hold_task_queues(conn: Connection, wanted: Sequence[TaskQueueKey], *, now: datetime) -> list[int]:
    """Insert missing task queues and lock all, one for each job; their ids in the same order.

    In the transaction that makes jobs Waiting and calls `add_waiting`: exactly these have a row there. None
    is removed or marked empty before the commit.
    """
    # By digest: comparing the classes themselves takes longer.
    keys = [(asked.digest, owner_group, owner) for asked, owner_group, owner in wanted]
    distinct = dict(zip(keys, wanted, strict=True))
    ids: Mapping[_DigestKey, int] = {}
    while len(ids) < len(distinct) or _mark_occupied(conn, set(ids.values()), now) < len(distinct):
        # Again where an unused task queue was removed meanwhile.
        ids = _ensure_task_queues(conn, distinct, now)
    return [ids[key] for key in keys]


def add_waiting(conn: Connection, entries: Sequence[tuple[int, int, float]]) -> None:
    """Add jobs (id, task queue id, priority) to task queues locked by `hold_task_queues`."""
    job_ids, task_queue_ids, priorities = zip(*entries, strict=True)
    ADD_WAITING.execute(conn, {"job_id": job_ids, "task_queue_id": task_queue_ids, "priority": priorities})


def requeue(conn: Connection, job_ids: Collection[int], *, now: datetime) -> None:
    """Return jobs to their task queues at their old position: the lease ended before they were started."""
    for ids in sql.split_batches(job_ids):
        rows = conn.execute(WAITING_VALUES, {"ids": ids}).all()
        _mark_occupied(conn, {row.task_queue_id for row in rows}, now)
        if rows:
            add_waiting(conn, [(row.job_id, row.task_queue_id, row.priority) for row in rows])


def dequeue(conn: Connection, job_ids: Collection[int]) -> None:
    """Remove jobs that were killed, deleted or rescheduled."""
    for ids in sql.split_batches(job_ids):
        conn.execute(REMOVE_WAITING, {"ids": ids})


def mark_empty(conn: Connection, task_queue_ids: Collection[int], *, now: datetime) -> None:
    """Mark those of the task queues empty that have no jobs, so that matchers skip them."""
    for ids in sql.split_batches(task_queue_ids):
        locked = set(conn.execute(LOCK_IF_FREE, {"ids": ids}).scalars())
        if not locked:
            continue
        # Only a statement that begins after the lock was taken sees all jobs added before.
        empty = locked - find_filled(conn, locked)
        if empty:
            _set_occupied(conn, empty, now, is_occupied=False)


def list_occupied(conn: Connection) -> list[TaskQueue]:
    """All task queues marked occupied."""
    return from_rows(conn.execute(OCCUPIED))


def read_occupied(conn: Connection, task_queue_ids: Collection[int]) -> list[TaskQueue]:
    """The task queues among these that are marked occupied."""
    return from_rows(sql.read_batches(conn, OCCUPIED_AMONG, task_queue_ids))


def read_page(conn: Connection, vo: str, *, after: int, most: int) -> Mapping[int, int]:
    """A page of the task queues of a VO that are marked occupied: the class of each, in the order of ids."""
    rows = conn.execute(OCCUPIED_OF_VO, {"the_vo": vo, "after": after, "most": most})
    return {row.task_queue_id: row.class_id for row in rows}


def read_task_queues(conn: Connection, task_queue_ids: Collection[int]) -> Mapping[int, TaskQueue]:
    """These task queues, by id, whether they have jobs or not."""
    rows = conn.execute(AMONG, {"ids": sorted(task_queue_ids)})
    return {each.task_queue_id: each for each in from_rows(rows)}


def find_filled(conn: Connection, task_queue_ids: Collection[int]) -> frozenset[int]:
    """The task queues among these that have a waiting job, whatever their marks are."""
    return frozenset(row.task_queue_id for row in sql.read_batches(conn, WITH_JOBS, task_queue_ids))


def count_waiting(conn: Connection, task_queue_ids: Collection[int]) -> Mapping[int, int]:
    """Number of jobs in each task queue; empty ones are left out."""
    return {row.task_queue_id: row.waiting for row in sql.read_batches(conn, WAITING_IN, task_queue_ids)}


def find_by_job(conn: Connection, job_id: int) -> int | None:
    """The task queue of a waiting job; None: the job does not wait."""
    return conn.execute(TASK_QUEUE_OF_JOB, {"job_id": job_id}).scalar_one_or_none()


def list_first_jobs(
    conn: Connection, task_queue_ids: Collection[int], most: int
) -> Mapping[int, Sequence[int]]:
    """The jobs of each task queue that will be assigned first, in order; empty ones are left out."""
    rows = sql.read_batches(conn, FIRST_IN, task_queue_ids, most=most)
    return {row.task_queue_id: tuple(map(int, row.job_ids.split(","))) for row in rows if row.job_ids}


def _mark_occupied(conn: Connection, task_queue_ids: Collection[int], now: datetime) -> int:
    """Lock task queues and mark them occupied; how many exist, since one may have been removed."""
    found = 0
    for ids in sql.split_batches(task_queue_ids):
        rows = conn.execute(LOCK, {"ids": ids}).all()
        if empty := {row.task_queue_id for row in rows if not row.occupied}:
            _set_occupied(conn, empty, now, is_occupied=True)
        found += len(rows)
    return found


def _set_occupied(conn: Connection, ids: Collection[int], now: datetime, *, is_occupied: bool) -> None:
    conn.execute(SET_OCCUPIED, {"ids": sorted(ids), "is_occupied": is_occupied, "now": now})
    change_feed.append_changes(conn, change_feed.TASK_QUEUE, [str(each) for each in ids], now=now)


def from_rows(rows: Iterable[Row[*tuple[Any, ...]]]) -> list[TaskQueue]:
    """Convert rows of `OCCUPIED`; without those that only a later release can match."""
    parsed = ((row, RequirementClass.from_json(row.definition)) for row in rows)
    return [_from_row(row, found) for row, found in parsed if found is not None]


def _from_row(row: Row[*tuple[Any, ...]], requirement_class: RequirementClass) -> TaskQueue:
    return TaskQueue(
        task_queue_id=row.task_queue_id,
        class_id=row.class_id,
        requirement_class=requirement_class,
        vo=row.vo,
        owner=row.owner,
        owner_group=row.owner_group,
        priority=row.priority,
        family=hash((row.owner_group, row.owner, shares.derive_family(requirement_class))),
        supply=row.supply,
    )
