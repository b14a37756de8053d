"""Candidate jobs of a task queue, one by one, where a location accepts or rejects each by its attributes.

Jobs with the same description, type and group form a kind; an expression is evaluated once for each kind.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Text,
    and_,
    bindparam,
    func,
    or_,
    select,
    tuple_,
)

from requirements.resource import Location
from taskqueue.leases import assignment
from taskqueue.leases.assignment import LOCATION_BINDS, DescriptionRoom, TakenRow
from taskqueue.schema.tables import descriptions, jobs, waiting_jobs
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS

#: Columns that identify a kind.
KIND_COLUMNS = (jobs.c.description_id, jobs.c.job_type, jobs.c.job_group)
#: Id of a description, job type and group: jobs of a kind differ only in number, name, priority and the
#: values of their placeholders.
JobKind = tuple[int, str, str]

KINDS = (
    select(waiting_jobs.c.task_queue_id, *KIND_COLUMNS, jobs.c.vo, jobs.c.owner, jobs.c.owner_group)
    .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id.in_(bindparam("task_queue_ids", expanding=True)))
    .distinct()
    .limit(bindparam("most"))
)
#: A kind with its task queue, VO, owner and group.
KindRow = Row[*tuple[Any, ...]]


def list_kinds(conn: Connection, task_queue_ids: Collection[int], *, most: int) -> Sequence[KindRow]:
    """Kinds waiting in the task queues, at most `most`."""
    return conn.execute(KINDS, {"task_queue_ids": sorted(task_queue_ids), "most": most}).all()


#: Jobs read by one statement.
_PAGE_SIZE: Final = 100
_THE_TASK_QUEUE: BindParameter[int] = bindparam("the_task_queue")


def _build_conditions() -> list[ColumnElement[bool]]:
    """Conditions in SQL, so that a hundred thousand jobs with an excluded value are not read."""
    type_ = bindparam("only_job_type", type_=Text)
    kept_out = [
        tuple_(jobs.c.vo, func.lower(shown)).not_in(bindparam(f"not_{attribute}", expanding=True))
        for attribute, shown in ATTRIBUTE_COLUMNS.items()
    ]
    refused = tuple_(*KIND_COLUMNS).not_in(bindparam("not_kinds", expanding=True))
    return [or_(type_.is_(None), func.lower(jobs.c.job_type) == type_), *kept_out, refused]


#: Assignable jobs in claim order.
_CANDIDATES = (
    assignment.select_claimable(_THE_TASK_QUEUE, **LOCATION_BINDS)
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .add_columns(
        waiting_jobs.c.priority.label("rank"),
        *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.priority, jobs.c.submit_pool),
        *(jobs.c.job_name, jobs.c.parameters, *KIND_COLUMNS, descriptions.c.body),
    )
    .where(*_build_conditions())
    .limit(_PAGE_SIZE)
)
CANDIDATE_PAGE = _CANDIDATES.where(
    or_(
        waiting_jobs.c.priority < bindparam("after_priority"),
        and_(
            waiting_jobs.c.priority == bindparam("after_priority"),
            waiting_jobs.c.job_id > bindparam("after_job"),
        ),
    )
)
COUNT_CANDIDATES = select(func.count()).select_from(
    assignment.select_claimable(_THE_TASK_QUEUE, **LOCATION_BINDS)
    .where(*_build_conditions())
    .order_by(None)
    .subquery()
)
CANDIDATE = _CANDIDATES.where(waiting_jobs.c.job_id == bindparam("the_job"))
LOCK_CANDIDATE = assignment.LOCKED.where(waiting_jobs.c.job_id == bindparam("the_job"))
NONEMPTY = assignment.select_nonempty(*_build_conditions())

#: An assignable job: id, VO, owner, group, priority, pool, name, type, job group, values of the
#: placeholders, and description.
CandidateRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFilter:
    """Which jobs of a task queue are candidates."""

    job_type: str | None = None  #: only of this type, in lower case; None: of any
    #: Attribute, VO and value with a reached limit; values in lower case.
    kept_out: frozenset[tuple[str, str, str]] = frozenset()
    refused: tuple[JobKind, ...] = ()  #: kinds that were rejected

    def values(self) -> dict[str, object]:
        """Bind values of the statement."""
        full = {
            f"not_{name}": sorted((vo, value) for attribute, vo, value in self.kept_out if attribute == name)
            for name in ATTRIBUTE_COLUMNS
        }
        return {"only_job_type": self.job_type, "not_kinds": list(self.refused), **full}


def find_nonempty(
    conn: Connection, task_queue_ids: Collection[int], *, place: Location, passing: CandidateFilter
) -> frozenset[int]:
    """Task queues with a candidate for this location."""
    return assignment.find_task_queues(
        conn, NONEMPTY, task_queue_ids, {**passing.values(), **assignment.bind_location(place)}
    )


def list_pages(
    conn: Connection, task_queue_id: int, *, place: Location, passing: Callable[[], CandidateFilter]
) -> Iterator[Sequence[CandidateRow]]:
    """Candidates of a task queue in claim order, in pages of a hundred.

    `passing` is called for each page, since the filter may change between pages.
    """
    after: tuple[float, int] = (float("inf"), 0)
    while True:
        values = {"the_task_queue": task_queue_id, "after_priority": after[0], "after_job": after[1]}
        rows = conn.execute(
            CANDIDATE_PAGE, {**values, **passing().values(), **assignment.bind_location(place)}
        ).all()
        yield rows
        if len(rows) < _PAGE_SIZE:
            return
        after = (rows[-1].rank, rows[-1].job_id)


def count_candidates(
    conn: Connection, task_queue_id: int, *, place: Location, passing: CandidateFilter
) -> int:
    """Number of candidates in a task queue."""
    values = {"the_task_queue": task_queue_id, **passing.values(), **assignment.bind_location(place)}
    return conn.execute(COUNT_CANDIDATES, values).scalar_one()


def read_candidate(
    conn: Connection, task_queue_id: int, job_id: int, *, place: Location, passing: CandidateFilter
) -> Sequence[CandidateRow]:
    """One job, if it is a candidate of the task queue; otherwise empty."""
    values = {"the_task_queue": task_queue_id, "the_job": job_id}
    return conn.execute(CANDIDATE, {**values, **passing.values(), **assignment.bind_location(place)}).all()


def take_job(
    conn: Connection,
    task_queue_id: int,
    job_id: int,
    *,
    place: Location,
    now: datetime,
    room: DescriptionRoom | None = None,
) -> list[TakenRow]:
    """Take one job; empty if it is gone or locked by another transaction.

    `opening.open_attempts` has to follow in the same transaction.
    """
    values = {"the_task_queue": task_queue_id, "the_job": job_id, **assignment.bind_location(place)}
    locked = conn.execute(LOCK_CANDIDATE, values).scalars().all()
    return assignment.take_locked(conn, locked, place=place, now=now, room=room)
