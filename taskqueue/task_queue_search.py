"""Finding task queues that have jobs: in pages, by whose they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection

from taskqueue import task_queues, whose
from taskqueue.tables import requirement_classes
from taskqueue.tables import task_queues as table
from taskqueue.task_queues import OCCUPIED, TaskQueue
from taskqueue.whose import Whose


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which task queues; None asks nothing, an empty set is met by none."""

    vos: frozenset[str] | None = None
    owner: str | None = None
    owner_group: str | None = None
    submit_pool: str | None = None
    any_of: tuple[Whose, ...] = ()  #: one of these besides, if there are any; wherever

    def clauses(self) -> list[ColumnElement[bool]]:
        """It as conditions on the tables of task queues and of what they ask."""
        equal = {table.c.owner: self.owner, table.c.owner_group: self.owner_group}
        found: list[ColumnElement[bool]] = [
            column == value for column, value in equal.items() if value is not None
        ]
        if self.vos is not None:
            found.append(table.c.vo.in_(sorted(self.vos)))
        if self.submit_pool is not None:
            # The definition is JSON; a digest stands for nothing else in it.
            found.append(requirement_classes.c.definition.contains(f'"{self.submit_pool}"', autoescape=True))
        return found + whose.clauses(self.any_of, vo=table.c.vo, owner=table.c.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """A task queue with the number of its jobs."""

    task_queue: TaskQueue
    waiting: int  #: may be none for a moment after the last was taken


def find(conn: Connection, which: Filter, *, limit: int, after: int = 0) -> Sequence[Occupied]:
    """A page of the task queues that have jobs, by id."""
    statement = OCCUPIED.where(table.c.task_queue_id > after, *which.clauses())
    rows = conn.execute(statement.order_by(table.c.task_queue_id).limit(limit)).all()
    found = [task_queues.from_row(row) for row in rows]
    waiting = task_queues.waiting_in(conn, [each.task_queue_id for each in found])
    return [Occupied(task_queue=each, waiting=waiting.get(each.task_queue_id, 0)) for each in found]
