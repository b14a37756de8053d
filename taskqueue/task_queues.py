"""Task queues: the waiting jobs of one owner and group with one requirement class.

`occupied` tells the matchers which of them are worth a try. Whoever puts jobs in holds the row's lock
until the commit, and whoever wants to call it empty takes that lock first and looks after that, in a
statement of its own: so no job is overlooked that was on its way in.
"""

from collections import defaultdict
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
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import Insert

from taskqueue import changes, shares
from taskqueue.classes import RequirementClass
from taskqueue.tables import jobs, requirement_classes, task_queues, waiting_jobs
from taskqueue.upserts import Twins, Upsert

#: Ids in one statement; SQLite takes no more than 32,766 values.
BATCH = 1000

_IDS: BindParameter[int] = bindparam("ids", expanding=True)
_Key = tuple[int, str, str]  # class id, owner group, owner


def _keep(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing()


NEW_CLASS = Twins(requirement_classes, _keep)
NEW_TASK_QUEUE = Twins(task_queues, _keep)

CLASS_IDS = select(requirement_classes.c.digest, requirement_classes.c.class_id).where(
    requirement_classes.c.digest.in_(bindparam("digests", expanding=True))
)
TASK_QUEUE_IDS = select(
    task_queues.c.class_id, task_queues.c.owner_group, task_queues.c.owner, task_queues.c.task_queue_id
).where(
    tuple_(task_queues.c.class_id, task_queues.c.owner_group, task_queues.c.owner).in_(
        bindparam("keys", expanding=True)
    )
)
# KEY SHARE: only the removal of a class has to wait.
LOCK_CLASSES = (
    select(requirement_classes.c.class_id)
    .where(requirement_classes.c.class_id.in_(_IDS))
    .order_by(requirement_classes.c.class_id)
    .with_for_update(read=True, key_share=True)
)
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
PUT = update(jobs).where(jobs.c.job_id.in_(_IDS)).values(task_queue_id=bindparam("the_task_queue"))
WAIT = insert(waiting_jobs)
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
    while (held := _hold(conn, entries, now)) is None:
        pass  # what was not used for long was removed under our hands: it is made anew
    by_key, ids = held
    for key, members in sorted(by_key.items()):
        _put(conn, ids[key], [entry.job_id for entry in members])
    rows = [
        {"job_id": entry.job_id, "task_queue_id": ids[key], "priority": entry.priority}
        for key, members in by_key.items()
        for entry in members
    ]
    conn.execute(WAIT, rows)


def _hold(
    conn: Connection, entries: Sequence[WaitingEntry], now: datetime
) -> tuple[Mapping[_Key, Sequence[WaitingEntry]], Mapping[_Key, int]] | None:
    """The entries by their task queues, which are locked and occupied; None: one went before it was."""
    wanted = {entry.requirement_class for entry in entries}
    classes = _ensure_classes(conn, wanted)
    if any(each.digest not in classes for each in wanted):
        return None
    by_key: defaultdict[_Key, list[WaitingEntry]] = defaultdict(list)
    for entry in entries:
        digest = entry.requirement_class.digest
        by_key[classes[digest], entry.owner_group, entry.owner].append(entry)
    ids = _ensure_task_queues(conn, by_key, now)
    if len(ids) < len(by_key) or _occupy(conn, set(ids.values()), now) < len(by_key):
        return None
    return by_key, ids


def enqueue_again(conn: Connection, job_ids: Collection[int], *, now: datetime) -> None:
    """Put jobs back where they waited before, at their old place: their lease ended before they began."""
    for ids in _batches(job_ids):
        rows = conn.execute(PLACES, {"ids": ids}).all()
        _occupy(conn, {row.task_queue_id for row in rows}, now)
        conn.execute(WAIT, [row._asdict() for row in rows])


def dequeue(conn: Connection, job_ids: Collection[int]) -> None:
    """Take jobs out that are not to run now: killed, deleted, rescheduled."""
    for ids in _batches(job_ids):
        conn.execute(LEAVE, {"ids": ids})


def mark_empty(conn: Connection, task_queue_ids: Collection[int], *, now: datetime) -> None:
    """Tell the matchers not to try these any more, as far as they really are empty."""
    for ids in _batches(task_queue_ids):
        locked = set(conn.execute(LOCK_IF_FREE, {"ids": ids}).scalars())
        if not locked:
            continue
        # Only a statement that begins after we have the lock sees all that was put in before.
        empty = locked - set(conn.execute(WITH_JOBS, {"ids": sorted(locked)}).scalars())
        _set_occupied(conn, empty, now, is_occupied=False)


def occupied(conn: Connection) -> list[TaskQueue]:
    """All task queues that may have jobs."""
    return [_task_queue(row) for row in conn.execute(OCCUPIED)]


def occupied_of(conn: Connection, task_queue_ids: Collection[int]) -> list[TaskQueue]:
    """Those of the task queues that may have jobs."""
    found: list[TaskQueue] = []
    for ids in _batches(task_queue_ids):
        found += [_task_queue(row) for row in conn.execute(OCCUPIED_OF, {"ids": ids})]
    return found


def waiting_in(conn: Connection, task_queue_ids: Collection[int]) -> Mapping[int, int]:
    """How many jobs wait in each; those without any are left out."""
    found: dict[int, int] = {}
    for ids in _batches(task_queue_ids):
        found |= {row.task_queue_id: row.waiting for row in conn.execute(WAITING_IN, {"ids": ids})}
    return found


def holding(conn: Connection, job_id: int) -> int | None:
    """The task queue that a job waits in; None: it does not wait."""
    return conn.execute(HOLDING, {"job_id": job_id}).scalar_one_or_none()


def first_jobs(conn: Connection, task_queue_id: int, most: int) -> list[int]:
    """The jobs that would be handed out first, in order."""
    return list(conn.execute(FIRST_IN, {"task_queue_id": task_queue_id, "most": most}).scalars())


def _ensure_classes(conn: Connection, classes: Collection[RequirementClass]) -> Mapping[str, int]:
    rows = [
        {"digest": each.digest, "vo": each.vo, "definition": each.to_json()}
        for each in sorted(classes, key=lambda each: each.digest)
    ]
    digests = [row["digest"] for row in rows]
    known = _class_ids(conn, digests)
    if missing := [row for row in rows if row["digest"] not in known]:
        conn.execute(NEW_CLASS.of(conn), missing)
        known = _class_ids(conn, digests)
    return known


def _class_ids(conn: Connection, digests: Sequence[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(digests), BATCH):
        rows = conn.execute(CLASS_IDS, {"digests": digests[start : start + BATCH]})
        found |= {row.digest: row.class_id for row in rows}
    return found


def _ensure_task_queues(
    conn: Connection, by_key: Mapping[_Key, Sequence[WaitingEntry]], now: datetime
) -> Mapping[_Key, int]:
    known = _task_queue_ids(conn, list(by_key))
    missing = sorted(key for key in by_key if key not in known)
    if not missing or not _lock_classes(conn, {class_id for class_id, _, _ in missing}):
        return known
    rows = [
        {
            "class_id": class_id,
            "vo": by_key[class_id, owner_group, owner][0].requirement_class.vo,
            "owner": owner,
            "owner_group": owner_group,
            "priority": 1.0,
            "occupied": False,  # `_occupy` says it, with the change that the matchers read
            "changed_at": now,
        }
        for class_id, owner_group, owner in missing
    ]
    conn.execute(NEW_TASK_QUEUE.of(conn), rows)
    return _task_queue_ids(conn, list(by_key))


def _lock_classes(conn: Connection, class_ids: Collection[int]) -> bool:
    """Keep classes from being removed before they have their task queue; False: one is gone."""
    return all(len(conn.execute(LOCK_CLASSES, {"ids": ids}).all()) == len(ids) for ids in _batches(class_ids))


def _task_queue_ids(conn: Connection, keys: Sequence[_Key]) -> Mapping[_Key, int]:
    found: dict[_Key, int] = {}
    for start in range(0, len(keys), BATCH):
        rows = conn.execute(TASK_QUEUE_IDS, {"keys": keys[start : start + BATCH]})
        found |= {(row.class_id, row.owner_group, row.owner): row.task_queue_id for row in rows}
    return found


def _occupy(conn: Connection, task_queue_ids: Collection[int], now: datetime) -> int:
    """Lock task queues that get jobs; how many there are, since one may have been removed just now."""
    found = 0
    for ids in _batches(task_queue_ids):
        rows = conn.execute(LOCK, {"ids": ids}).all()
        _set_occupied(conn, {row.task_queue_id for row in rows if not row.occupied}, now, is_occupied=True)
        found += len(rows)
    return found


def _set_occupied(conn: Connection, ids: Collection[int], now: datetime, *, is_occupied: bool) -> None:
    if ids:
        conn.execute(SET_OCCUPIED, {"ids": sorted(ids), "is_occupied": is_occupied, "now": now})
        changes.append(conn, changes.TASK_QUEUE, [str(each) for each in ids], now=now)


def _put(conn: Connection, task_queue_id: int, job_ids: Collection[int]) -> None:
    for ids in _batches(job_ids):
        conn.execute(PUT, {"ids": ids, "the_task_queue": task_queue_id})


def _batches(ids: Collection[int]) -> list[list[int]]:
    ordered = sorted(set(ids))
    return [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]


def _task_queue(row: Row[*tuple[Any, ...]]) -> TaskQueue:
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
