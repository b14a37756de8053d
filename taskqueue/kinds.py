"""Kinds of waiting jobs, each made by one description: what is asked of them is asked once."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from taskqueue.tables import descriptions, jobs, waiting_jobs

#: What a kind is known by.
COLUMNS = (jobs.c.description_id, jobs.c.job_type, jobs.c.job_group)
#: The id of a description, a type and a group: such jobs differ only in number, name, priority and in what
#: fills their placeholders.
Kind = tuple[int, str, str]

KINDS = (
    select(waiting_jobs.c.task_queue_id, *COLUMNS, jobs.c.vo, jobs.c.owner, jobs.c.owner_group)
    .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id.in_(bindparam("task_queue_ids", expanding=True)))
    .distinct()
    .limit(bindparam("most"))
)
BODIES = select(descriptions.c.description_id, descriptions.c.body).where(
    descriptions.c.description_id.in_(bindparam("ids", expanding=True))
)

#: A kind with its task queue, and whose it is.
Waiting = Row[*tuple[Any, ...]]


def waiting_in(conn: Connection, task_queue_ids: Collection[int], *, most: int) -> Sequence[Waiting]:
    """The kinds that wait in task queues, not more than `most`."""
    return conn.execute(KINDS, {"task_queue_ids": sorted(task_queue_ids), "most": most}).all()


def bodies(conn: Connection, description_ids: Collection[int]) -> Mapping[int, str]:
    """Stored descriptions by their id."""
    rows = conn.execute(BODIES, {"ids": sorted(description_ids)})
    return {row.description_id: row.body for row in rows}
