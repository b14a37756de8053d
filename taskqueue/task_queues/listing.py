"""Lists of task queues with waiting jobs, the class of one, and the position of a job in its task queue."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, or_, select

from taskqueue import ownership
from taskqueue.ownership import OwnershipFilter
from taskqueue.schema.tables import requirement_classes, waiting_jobs
from taskqueue.schema.tables import task_queues as table
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.requirement_class import RequirementClass
from taskqueue.task_queues.task_queues import OCCUPIED, TaskQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueFilter:
    """Conditions on task queues; None: no condition, an empty set: matches nothing."""

    vos: frozenset[str] | None = None
    owner: str | None = None
    owner_group: str | None = None
    submit_pool: str | None = None
    any_of: tuple[OwnershipFilter, ...] = ()  #: at least one of these, if there are any; sites are ignored

    def clauses(self) -> list[ColumnElement[bool]]:
        """SQL conditions on task queues and their classes."""
        equal = {table.c.owner: self.owner, table.c.owner_group: self.owner_group}
        found: list[ColumnElement[bool]] = [
            column == value for column, value in equal.items() if value is not None
        ]
        if self.vos is not None:
            found.append(table.c.vo.in_(sorted(self.vos)))
        if self.submit_pool is not None:
            # The definition is JSON; a pool's digest occurs nowhere else in it.
            found.append(requirement_classes.c.definition.contains(f'"{self.submit_pool}"', autoescape=True))
        return found + ownership.match_any(self.any_of, vo=table.c.vo, owner=table.c.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedTaskQueue:
    """A task queue with the number of its jobs."""

    task_queue: TaskQueue
    waiting: int  #: may be 0 briefly after the last job was taken


def list_task_queues(
    conn: Connection, which: TaskQueueFilter, *, limit: int, after: int = 0
) -> Sequence[OccupiedTaskQueue]:
    """A page of the task queues that have jobs, by id."""
    statement = OCCUPIED.where(table.c.task_queue_id > after, *which.clauses())
    rows = conn.execute(statement.order_by(table.c.task_queue_id).limit(limit)).all()
    found = [task_queues.from_row(row) for row in rows]
    waiting = task_queues.count_waiting(conn, [each.task_queue_id for each in found])
    return [OccupiedTaskQueue(task_queue=each, waiting=waiting.get(each.task_queue_id, 0)) for each in found]


_own = waiting_jobs.alias("own")
_comes_first = or_(
    waiting_jobs.c.priority > _own.c.priority,
    and_(waiting_jobs.c.priority == _own.c.priority, waiting_jobs.c.job_id < _own.c.job_id),
)
POSITION_OF_JOB = (
    select(
        func.count().label("waiting"),
        func.coalesce(func.sum(case((_comes_first, 1), else_=0)), 0).label("before"),
    )
    .select_from(waiting_jobs.join(_own, _own.c.task_queue_id == waiting_jobs.c.task_queue_id))
    .where(_own.c.job_id == bindparam("job_id"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """Position of a job in its task queue."""

    before: int  #: jobs that are assigned first
    waiting: int  #: jobs in the task queue, including this one


def read_position(conn: Connection, job_id: int) -> QueuePosition | None:
    """Position of a job; None: it does not wait."""
    row = conn.execute(POSITION_OF_JOB, {"job_id": job_id}).one()
    return QueuePosition(before=row.before, waiting=row.waiting) if row.waiting else None


CLASS_OF_TASK_QUEUE = (
    select(requirement_classes.c.definition)
    .join(table, table.c.class_id == requirement_classes.c.class_id)
    .where(table.c.task_queue_id == bindparam("task_queue_id"))
)


def read_requirement_class(conn: Connection, task_queue_id: int) -> RequirementClass | None:
    """The class of a task queue; None if it was removed."""
    definition = conn.execute(CLASS_OF_TASK_QUEUE, {"task_queue_id": task_queue_id}).scalar_one_or_none()
    return None if definition is None else RequirementClass.from_json(definition)
