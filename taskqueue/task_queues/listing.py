"""Lists of task queues and requirement classes with waiting jobs, and the position of a job in its queue."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, func, select

from requirements.kept import keep
from requirements.requirement_class import RequirementClass
from taskqueue import ownership
from taskqueue.db import sql
from taskqueue.ownership import EVERY_ROW, Visible
from taskqueue.pools import mapping
from taskqueue.schema.tables import descriptions, jobs, requirement_classes, waiting_jobs
from taskqueue.schema.tables import task_queues as table
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import OCCUPIED, TaskQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueFilter:
    """Conditions on task queues; None: no condition."""

    visible: Visible = EVERY_ROW  #: sites are ignored
    owner_group: str | None = None
    submit_pool: str | None = None

    def clauses(self) -> list[ColumnElement[bool]]:
        """SQL conditions on task queues and their classes."""
        found = ownership.match_visible(self.visible, vo=table.c.vo, owner=table.c.owner)
        found += ownership.match_values({table.c.owner_group: self.owner_group})
        if self.submit_pool is not None:
            # The definition is JSON; a pool's digest occurs nowhere else in it.
            found.append(requirement_classes.c.definition.contains(f'"{self.submit_pool}"', autoescape=True))
        return found


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
    found = task_queues.from_rows(rows)
    waiting = task_queues.count_waiting(conn, [each.task_queue_id for each in found])
    return [OccupiedTaskQueue(task_queue=each, waiting=waiting.get(each.task_queue_id, 0)) for each in found]


OWN = (
    select(
        *(table.c.class_id, table.c.task_queue_id, table.c.priority.label("weight")),
        waiting_jobs.c.priority,
    )
    .join(waiting_jobs, waiting_jobs.c.task_queue_id == table.c.task_queue_id)
    .where(waiting_jobs.c.job_id == bindparam("job_id"))
)
IN_OWN = select(func.count()).where(waiting_jobs.c.task_queue_id == bindparam("task_queue_id"))
#: Read in the order of the index: what comes later is not touched.
BEFORE = select(
    IN_OWN.where(waiting_jobs.c.priority > bindparam("priority")).scalar_subquery()
    + IN_OWN.where(
        waiting_jobs.c.priority == bindparam("priority"), waiting_jobs.c.job_id < bindparam("job_id")
    ).scalar_subquery()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """Position of a job in its task queue."""

    before: int  #: jobs that are assigned first
    waiting: int  #: jobs in the task queue, including this one


def read_position(conn: Connection, job_id: int) -> QueuePosition | None:
    """Position of a job; None: it does not wait."""
    own = conn.execute(OWN, {"job_id": job_id}).one_or_none()
    if own is None:
        return None
    waiting = conn.execute(IN_OWN, {"task_queue_id": own.task_queue_id}).scalar_one()
    return QueuePosition(before=_count_before(conn, own, job_id), waiting=waiting)


def _count_before(conn: Connection, own: Row[*tuple[Any, ...]], job_id: int) -> int:
    """Jobs of a task queue that are assigned before this one of it."""
    values = {"task_queue_id": own.task_queue_id, "priority": own.priority, "job_id": job_id}
    found: int = conn.execute(BEFORE, values).scalar_one()
    return found


IN_CLASS = select(
    *(table.c.class_id, table.c.task_queue_id, table.c.owner, table.c.owner_group, table.c.priority)
)
IN_CLASS_OF_ID = IN_CLASS.where(table.c.class_id == bindparam("class_id"), table.c.occupied)
IN_CLASS_OF_DIGEST = IN_CLASS.join(
    requirement_classes, requirement_classes.c.class_id == table.c.class_id
).where(requirement_classes.c.digest == bindparam("digest"))
_first_of_each = (
    select(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == table.c.task_queue_id)
    .limit(bindparam("most"))
    .correlate(table)
    .subquery()
)
#: At most so many are counted: no more of them come before the job.
COUNT_SOME = select(
    table.c.task_queue_id,
    select(func.count()).select_from(_first_of_each).scalar_subquery().label("waiting"),
).where(sql.is_listed(table.c.task_queue_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceInClass:
    """The class of a waiting job, and the jobs of it that will probably be handed out before this one."""

    class_id: int
    before: float


def find_place(conn: Connection, job_id: int) -> PlaceInClass | None:
    """The place of a job among those of its class; None: it does not wait.

    While those before it in its task queue are handed out, other task queues of the class hand out as many
    as their weights allow. Only jobs that come before it are counted.
    """
    own = conn.execute(OWN, {"job_id": job_id}).one_or_none()
    if own is None:
        return None
    before = _count_before(conn, own, job_id)
    alike = conn.execute(IN_CLASS_OF_ID, {"class_id": own.class_id}).all()
    others = [row for row in alike if row.task_queue_id != own.task_queue_id]
    return PlaceInClass(class_id=own.class_id, before=before + _count_turns(conn, others, before, own.weight))


def find_place_of_new(
    conn: Connection, asked: RequirementClass, *, owner: str, owner_group: str, priority: float
) -> PlaceInClass | None:
    """The same for a job that would be submitted now; None: no such jobs were submitted lately.

    A task queue that would be new is taken to have the average weight of its class.
    """
    rows = conn.execute(IN_CLASS_OF_DIGEST, {"digest": asked.digest}).all()
    if not rows:
        return None
    own = next((row for row in rows if (row.owner, row.owner_group) == (owner, owner_group)), None)
    before = 0
    if own is not None:
        values = {"task_queue_id": own.task_queue_id, "priority": priority, "job_id": sql.MOST_ID}
        before = conn.execute(BEFORE, values).scalar_one()
    weight = own.priority if own else sum(row.priority for row in rows) / len(rows)
    turns = _count_turns(conn, [row for row in rows if row is not own], before, weight)
    return PlaceInClass(class_id=rows[0].class_id, before=before + turns)


def _count_turns(
    conn: Connection, others: Sequence[Row[*tuple[Any, ...]]], before: int, weight: float
) -> float:
    """Jobs that other task queues of a class hand out until one of this weight has handed out so many."""
    turns = {
        row.task_queue_id: (before + 1) * row.priority / weight if weight else float(sql.MOST_ID)
        for row in others
    }
    if not turns:
        return 0.0
    most = min(math.ceil(max(turns.values())), sql.MOST_ID)
    counted = sql.read_batches(conn, COUNT_SOME, turns, most=most)
    return float(sum(min(row.waiting, turns[row.task_queue_id]) for row in counted))


JOB_AT = (
    select(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.task_queue_id == bindparam("task_queue_id"))
    .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    .limit(1)
    .offset(bindparam("place"))
)
OCCUPIED_OF_VOS = select(table.c.vo, table.c.task_queue_id).where(table.c.occupied).order_by(table.c.vo)


def list_occupied(conn: Connection) -> dict[str, list[int]]:
    """The ids of task queues that have waiting jobs, or had some a moment ago, by VO."""
    return {
        vo: [row.task_queue_id for row in rows]
        for vo, rows in groupby(conn.execute(OCCUPIED_OF_VOS), key=attrgetter("vo"))
    }


def read_job_at(conn: Connection, task_queue_id: int, place: int) -> int | None:
    """The job before which so many others of its task queue are handed out; None: there are fewer."""
    values = {"task_queue_id": task_queue_id, "place": place}
    found: int | None = conn.execute(JOB_AT, values).scalar_one_or_none()
    return found


CLASS_OF_TASK_QUEUE = (
    select(requirement_classes.c.definition)
    .join(table, table.c.class_id == requirement_classes.c.class_id)
    .where(table.c.task_queue_id == bindparam("task_queue_id"))
)


def read_requirement_class(conn: Connection, task_queue_id: int) -> RequirementClass | None:
    """The class of a task queue; None if it was removed, or only a later release can read it."""
    definition = conn.execute(CLASS_OF_TASK_QUEUE, {"task_queue_id": task_queue_id}).scalar_one_or_none()
    return None if definition is None else RequirementClass.from_json(definition)


_class = (table.c.class_id, requirement_classes.c.definition)


def _select_waiting(*which: ColumnElement[bool]) -> Select[Any]:
    """Classes with waiting jobs in some task queues: only these jobs are read."""
    per_task_queue = select(
        waiting_jobs.c.task_queue_id,
        func.count().label("jobs"),
        func.min(waiting_jobs.c.job_id).label("first"),
    ).group_by(waiting_jobs.c.task_queue_id)
    counts = per_task_queue.where(*which).subquery()
    return (
        select(*_class, func.sum(counts.c.jobs).label("jobs"), func.min(counts.c.first).label("first"))
        .select_from(counts)
        .join(table, table.c.task_queue_id == counts.c.task_queue_id)
        .join(requirement_classes, requirement_classes.c.class_id == table.c.class_id)
        .group_by(*_class)
        .order_by(table.c.class_id)
    )


def _select_waiting_of(vos: Collection[str] | None) -> Select[Any]:
    """The same in those of some VOs (None: of all)."""
    if vos is None:
        return _select_waiting()
    own = select(table.c.task_queue_id).where(table.c.vo.in_(sorted(vos)))
    return _select_waiting(waiting_jobs.c.task_queue_id.in_(own))


WAITING_IN = _select_waiting(sql.is_listed(waiting_jobs.c.task_queue_id))
FIRST_JOBS = (
    select(
        *(jobs.c.job_id, jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.job_name, jobs.c.job_type),
        *(jobs.c.job_group, jobs.c.priority, jobs.c.parameters, descriptions.c.body),
    )
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .where(sql.is_listed(jobs.c.job_id))
)
RANKS = (
    select(jobs.c.job_id, descriptions.c.rank)
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .where(sql.is_listed(jobs.c.job_id), descriptions.c.rank.is_not(None))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClass:
    """A requirement class with waiting jobs."""

    asked: RequirementClass
    requirements: str | None  #: its pool's Requirements as first written, JSON; None: it has no pool
    jobs: int
    first_job: int  #: id of the oldest


def list_waiting(conn: Connection, vos: Collection[str] | None) -> list[WaitingClass]:
    """Classes of these VOs (None: all) with waiting jobs."""
    return _read_waiting(conn, conn.execute(_select_waiting_of(vos)))


def list_waiting_in(conn: Connection, task_queue_ids: Collection[int]) -> list[WaitingClass]:
    """Classes with waiting jobs in these task queues; one of very many task queues may stand there twice."""
    return _read_waiting(conn, sql.read_batches(conn, WAITING_IN, task_queue_ids))


def _read_waiting(conn: Connection, rows: Iterable[Row[*tuple[Any, ...]]]) -> list[WaitingClass]:
    found = [
        (asked, int(row.jobs), row.first)
        for row in rows
        if (asked := _parse_class(row.definition)) is not None
    ]
    originals = mapping.read_originals(conn, {asked.submit_pool for asked, *_ in found if asked.submit_pool})
    return [
        WaitingClass(
            asked=asked, requirements=originals.get(asked.submit_pool or ""), jobs=jobs, first_job=first
        )
        for asked, jobs, first in found
    ]


OCCUPIED_CLASSES = (
    select(table.c.class_id, table.c.task_queue_id, requirement_classes.c.digest)
    .join(requirement_classes, requirement_classes.c.class_id == table.c.class_id)
    .where(table.c.occupied)
    .order_by(table.c.class_id)
)
DEFINITIONS = select(*(requirement_classes.c.class_id, requirement_classes.c.definition)).where(
    sql.is_listed(requirement_classes.c.class_id)
)
_some_waiting = (
    select(waiting_jobs.c.job_id)
    .where(sql.is_listed(waiting_jobs.c.task_queue_id))
    .limit(bindparam("most"))
    .subquery()
)
SOME_WAITING = select(func.count().label("jobs"), func.min(_some_waiting.c.job_id).label("first"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedClass:
    """A requirement class that has waiting jobs, or had some a moment ago, with its task queues."""

    class_id: int
    digest: str
    task_queue_ids: Sequence[int]


def list_occupied_classes(conn: Connection, vos: Collection[str] | None) -> list[OccupiedClass]:
    """The classes of these VOs (None: all) with waiting jobs; no job is read."""
    named = ownership.match_values({table.c.vo: vos})
    rows = conn.execute(OCCUPIED_CLASSES.where(*named))
    return [
        OccupiedClass(class_id=class_id, digest=digest, task_queue_ids=[row.task_queue_id for row in alike])
        for (class_id, digest), alike in groupby(rows, key=attrgetter("class_id", "digest"))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClass:
    """A requirement class with its pool's Requirements as first written, JSON; None: it has no pool."""

    asked: RequirementClass
    requirements: str | None


def read_classes(conn: Connection, class_ids: Collection[int]) -> Mapping[int, StoredClass]:
    """Classes by id; without those of later releases, and those whose pool was removed."""
    rows = sql.read_batches(conn, DEFINITIONS, class_ids)
    found = {row.class_id: asked for row in rows if (asked := _parse_class(row.definition)) is not None}
    originals = mapping.read_originals(
        conn, {each.submit_pool for each in found.values() if each.submit_pool}
    )
    return {
        class_id: StoredClass(asked=asked, requirements=originals.get(asked.submit_pool or ""))
        for class_id, asked in found.items()
        if asked.submit_pool is None or asked.submit_pool in originals
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCount:
    """Waiting jobs as far as they were counted, with the first of these."""

    jobs: int
    first_job: int


def count_waiting_at_most(
    conn: Connection, task_queue_ids: Collection[int], *, most: int
) -> WaitingCount | None:
    """Count the waiting jobs of these task queues, at most `most` of them; None: there are none."""
    jobs, first = 0, []
    for ids in sql.split_batches(task_queue_ids):
        row = conn.execute(SOME_WAITING, {"ids": ids, "most": most - jobs}).one()
        if row.jobs:
            jobs += row.jobs
            first.append(row.first)
        if jobs >= most:
            break
    return WaitingCount(jobs=jobs, first_job=min(first)) if first else None


@keep(
    64,
    lambda _, definition: 1000 + 5 * len(definition),
    find_tenant=lambda asked: asked.vo if asked else "",
)
def _parse_class(definition: str) -> RequirementClass | None:
    """A requirement class from its stored definition. Cached: it never changes, and every query parses it."""
    return RequirementClass.from_json(definition)


def list_first_jobs(conn: Connection, waiting: Collection[WaitingClass]) -> list[Row[*tuple[Any, ...]]]:
    """The oldest job of each class, with its description."""
    return read_jobs(conn, [each.first_job for each in waiting])


def read_jobs(conn: Connection, job_ids: Collection[int]) -> list[Row[*tuple[Any, ...]]]:
    """Jobs with their descriptions."""
    return sql.read_batches(conn, FIRST_JOBS, job_ids)


def read_ranks(conn: Connection, job_ids: Collection[int]) -> dict[int, str]:
    """The `Rank` of those of the jobs that state one, by id."""
    return {row.job_id: row.rank for row in sql.read_batches(conn, RANKS, job_ids)}
