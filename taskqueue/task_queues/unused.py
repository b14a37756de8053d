"""Removal of unused task queues and requirement classes.

A row is locked first, and checked for use in a later statement. `task_queues.hold_task_queues` takes the
same lock, or finds the row gone and inserts it again. So neither waits long for the other, and no job is
left without its task queue.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import BindParameter, Connection, bindparam, delete, exists, select

from taskqueue.db import sql
from taskqueue.schema.tables import jobs, requirement_classes, waiting_jobs
from taskqueue.schema.tables import task_queues as table

_BEFORE = bindparam("before", type_=table.c.changed_at.type)
_IDS: BindParameter[int] = bindparam("ids", expanding=True)

_has_jobs = exists().where(waiting_jobs.c.task_queue_id == table.c.task_queue_id)
_is_unused = (~table.c.occupied, table.c.changed_at < _BEFORE)
#: Emptied without a claim, e.g. because the last job was killed.
STILL_OCCUPIED = select(table.c.task_queue_id).where(
    table.c.occupied, table.c.changed_at < _BEFORE, ~_has_jobs
)
UNUSED = select(table.c.task_queue_id).where(*_is_unused)
#: One scan of all jobs a day: an index by task queue would cost at every change of a job.
IN_USE = select(jobs.c.task_queue_id).where(jobs.c.task_queue_id.is_not(None)).distinct()
LOCK = (
    select(table.c.task_queue_id)
    .where(table.c.task_queue_id.in_(_IDS), *_is_unused)
    .order_by(table.c.task_queue_id)
    .with_for_update(skip_locked=True)
)
REMOVE = delete(table).where(table.c.task_queue_id.in_(_IDS), ~_has_jobs)

_is_referenced = exists().where(table.c.class_id == requirement_classes.c.class_id)
LOCK_CLASSES = (
    select(requirement_classes.c.class_id)
    .where(~_is_referenced)
    .order_by(requirement_classes.c.class_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
REMOVE_CLASSES = delete(requirement_classes).where(requirement_classes.c.class_id.in_(_IDS), ~_is_referenced)


def list_emptied(conn: Connection, *, before: datetime) -> list[int]:
    """Task queues without jobs that have been marked occupied since before that time: for `mark_empty`."""
    return list(conn.execute(STILL_OCCUPIED, {"before": before}).scalars())


def list_unused(conn: Connection, *, before: datetime) -> list[int]:
    """Task queues empty since before that time that no job refers to, not even a final one.

    The candidates are read before the jobs: a job that comes in between changes `changed_at`.
    """
    unused = conn.execute(UNUSED, {"before": before}).scalars().all()
    in_use = set(conn.execute(IN_USE).scalars()) if unused else set()
    return sorted(set(unused) - in_use)


def remove_unused(conn: Connection, task_queue_ids: Collection[int], *, before: datetime) -> int:
    """Remove the task queues found by `list_unused`, with the same `before`, if still unused; how many.

    At most `sql.BATCH_SIZE` ids.
    """
    locked = list(conn.execute(LOCK, {"ids": sorted(task_queue_ids), "before": before}).scalars())
    return conn.execute(REMOVE, {"ids": locked}).rowcount if locked else 0


def remove_unused_classes(conn: Connection, *, limit: int = sql.BATCH_SIZE) -> int:
    """Remove requirement classes without a task queue; how many."""
    locked = list(conn.execute(LOCK_CLASSES, {"limit": limit}).scalars())
    return conn.execute(REMOVE_CLASSES, {"ids": locked}).rowcount if locked else 0
