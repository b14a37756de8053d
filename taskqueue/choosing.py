"""Taking jobs one by one, where a place asks who each is before it lets it in."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    tuple_,
)

from taskqueue import kinds, taking
from taskqueue.kinds import Kind
from taskqueue.presence import COLUMNS
from taskqueue.tables import descriptions, jobs, waiting_jobs
from taskqueue.taking import HERE, Place, Taken

#: Jobs that are looked at in one statement.
_PEEKED: Final = 100
_THE_TASK_QUEUE: BindParameter[int] = bindparam("the_task_queue")


def _passing() -> list[ColumnElement[bool]]:
    """A task queue may have a hundred thousand jobs with a value that is kept out now: do not read them."""
    type_: BindParameter[str] = bindparam("only_job_type")
    kept_out = [
        tuple_(jobs.c.vo, func.lower(shown)).not_in(bindparam(f"not_{attribute}", expanding=True))
        for attribute, shown in COLUMNS.items()
    ]
    refused = tuple_(*kinds.COLUMNS).not_in(bindparam("not_kinds", expanding=True))
    return [or_(type_ == "", func.lower(jobs.c.job_type) == type_), *kept_out, refused]


#: The jobs that may be taken, in the order of a claim.
_SHOWN = (
    taking.claimable(_THE_TASK_QUEUE, **HERE)
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .add_columns(
        waiting_jobs.c.priority.label("rank"),
        *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.priority, jobs.c.submit_pool),
        *(jobs.c.job_name, jobs.c.parameters, *kinds.COLUMNS, descriptions.c.body),
    )
    .where(*_passing())
    .limit(_PEEKED)
)
PEEK = _SHOWN.where(
    or_(
        waiting_jobs.c.priority < bindparam("after_priority"),
        and_(
            waiting_jobs.c.priority == bindparam("after_priority"),
            waiting_jobs.c.job_id > bindparam("after_job"),
        ),
    )
)
COUNT = select(func.count()).select_from(
    taking.claimable(_THE_TASK_QUEUE, **HERE).where(*_passing()).order_by(None).subquery()
)
PEEK_AT = _SHOWN.where(waiting_jobs.c.job_id == bindparam("the_job"))
PICK = (
    taking.claimable(_THE_TASK_QUEUE, **HERE)
    .where(waiting_jobs.c.job_id == bindparam("the_job"))
    .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
)
LEFT = taking.left_if(*_passing())
LEAVE = delete(waiting_jobs).where(waiting_jobs.c.job_id == bindparam("the_job"))

#: A job that may be taken: its id, VO, owner, group, priority, pool, name, type, job group, what it
#: puts into the placeholders, and description.
Waiting = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Which jobs of a task queue are worth a look."""

    job_type: str = ""  #: only of this type, in lower case; empty: of any
    #: Attribute, VO and value of those that are full; values in lower case.
    kept_out: frozenset[tuple[str, str, str]] = frozenset()
    refused: tuple[Kind, ...] = ()  #: kinds of which none will do

    def values(self) -> dict[str, object]:
        """For the statement."""
        full = {
            f"not_{name}": sorted((vo, value) for attribute, vo, value in self.kept_out if attribute == name)
            for name in COLUMNS
        }
        return {"only_job_type": self.job_type, "not_kinds": list(self.refused), **full}


def left(
    conn: Connection, task_queue_ids: Collection[int], *, place: Place, passing: Passing
) -> frozenset[int]:
    """Those of the task queues that have a job for this place which is worth a look."""
    return taking.ask(conn, LEFT, task_queue_ids, {**passing.values(), **taking.at_place(place)})


def pages(
    conn: Connection, task_queue_id: int, *, place: Place, passing: Callable[[], Passing]
) -> Iterator[Sequence[Waiting]]:
    """The jobs of a task queue in the order in which they would be taken, a hundred at once.

    Args:
        conn: Read only.
        task_queue_id: The task queue.
        place: Where they would run.
        passing: Which are worth a look; asked again for each page.
    """
    after: tuple[float, int] = (float("inf"), 0)
    while True:
        values = {"the_task_queue": task_queue_id, "after_priority": after[0], "after_job": after[1]}
        rows = conn.execute(PEEK, {**values, **passing().values(), **taking.at_place(place)}).all()
        yield rows
        if len(rows) < _PEEKED:
            return
        after = (rows[-1].rank, rows[-1].job_id)


def count(conn: Connection, task_queue_id: int, *, place: Place, passing: Passing) -> int:
    """How many jobs of a task queue are worth a look."""
    values = {"the_task_queue": task_queue_id, **passing.values(), **taking.at_place(place)}
    return conn.execute(COUNT, values).scalar_one()


def peek_at(
    conn: Connection, task_queue_id: int, job_id: int, *, place: Place, passing: Passing
) -> Sequence[Waiting]:
    """This very job, if it may be taken out of that task queue."""
    values = {"the_task_queue": task_queue_id, "the_job": job_id}
    return conn.execute(PEEK_AT, {**values, **passing.values(), **taking.at_place(place)}).all()


def take(conn: Connection, task_queue_id: int, job_id: int, *, place: Place, now: datetime) -> list[Taken]:
    """Take this very job; nothing if it is gone, or in another's hands.

    `claims.hand_over` has to follow in the same transaction.
    """
    values = {"the_task_queue": task_queue_id, "the_job": job_id, **taking.at_place(place)}
    if conn.execute(PICK, values).first() is None:
        return []
    conn.execute(LEAVE, {"the_job": job_id})
    return list(taking.give(conn, {job_id: place.site or "ANY"}, now).values())
