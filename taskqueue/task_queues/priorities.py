"""Weights of task queues in the database: inputs of the computation, recent usage among them, and storage."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, extract, func, select, update

from cs_config.versions.tables import UtcTime
from requirements.requirement_class import RequirementClass
from requirements.states import HELD, JobStatus
from taskqueue.db import sql
from taskqueue.schema.tables import attempts, jobs, requirement_classes, task_queues, waiting_jobs
from taskqueue.task_queues import change_feed, shares
from taskqueue.task_queues.shares import ShareDemand, ShareHolder

#: Classes in the cache; when there are more it is cleared.
_CACHE_SIZE = 100_000

VOS = select(task_queues.c.vo).where(task_queues.c.occupied).distinct().order_by(task_queues.c.vo)


def _count_jobs(task_queue: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Grouped by priority: there are many jobs but few priorities."""
    by = (waiting_jobs.c.task_queue_id, waiting_jobs.c.priority)
    return select(*by, func.count().label("jobs")).where(task_queue).group_by(*by)


COUNTED = _count_jobs(
    waiting_jobs.c.task_queue_id.in_(
        select(task_queues.c.task_queue_id).where(task_queues.c.vo == bindparam("vo"))
    )
)
COUNTED_OF = _count_jobs(sql.is_listed(waiting_jobs.c.task_queue_id))
OCCUPIED = (
    select(
        *(task_queues.c.task_queue_id, task_queues.c.owner, task_queues.c.owner_group),
        *(task_queues.c.priority, task_queues.c.supply, requirement_classes.c.digest),
    )
    .join(requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id)
    .where(task_queues.c.vo == bindparam("vo"), task_queues.c.occupied)
)
DEFINITIONS = select(requirement_classes.c.digest, requirement_classes.c.definition).where(
    sql.is_listed(requirement_classes.c.digest)
)
NEWLY_OCCUPIED = select(task_queues.c.task_queue_id, task_queues.c.vo, task_queues.c.changed_at).where(
    sql.is_listed(task_queues.c.task_queue_id), task_queues.c.occupied
)
SET_WEIGHT = (
    update(task_queues)
    .where(task_queues.c.task_queue_id == bindparam("the_task_queue"))
    .values(priority=bindparam("weight"), supply=bindparam("slots"))
)
WEIGHTS_OF_GROUPS = select(task_queues.c.task_queue_id, task_queues.c.priority, task_queues.c.supply).where(
    sql.is_listed(task_queues.c.owner_group), task_queues.c.occupied
)


@dataclass(frozen=True, slots=True)
class Weight:
    """What the order of service knows of a task queue beside its class."""

    priority: float  #: weight in the lottery
    supply: int | None  #: slots that came lately where its jobs may run; None: not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class NewlyOccupied:
    """A task queue that got jobs after it was empty."""

    task_queue_id: int
    vo: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobs:
    """The waiting jobs of a task queue."""

    raw: float  #: mean of `shares.compute_job_weight`
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTaskQueue:
    """A task queue with jobs, and its stored weight."""

    demand: ShareDemand
    digest: str  #: of its class
    weight: Weight
    jobs: int


def list_vos(conn: Connection) -> list[str]:
    """VOs that have task queues with jobs."""
    return list(conn.execute(VOS).scalars())


def list_newly_occupied(conn: Connection, task_queue_ids: Collection[int]) -> frozenset[NewlyOccupied]:
    """The task queues among these that have jobs, with the time when they became occupied."""
    rows = sql.read_batches(conn, NEWLY_OCCUPIED, task_queue_ids)
    return frozenset(
        NewlyOccupied(task_queue_id=row.task_queue_id, vo=row.vo, at=row.changed_at) for row in rows
    )


class FamilyCache:
    """Families of requirement classes by digest: definitions are long, and never change."""

    def __init__(self) -> None:
        self._known: dict[str, Hashable] = {}

    def read_families(self, conn: Connection, digests: Collection[str]) -> Mapping[str, Hashable]:
        """The families of these classes; missing ones are read."""
        # One look for each: another thread may clear it meanwhile.
        found_families = ((digest, self._known.get(digest)) for digest in digests)
        known = {digest: family for digest, family in found_families if family is not None}
        for row in sql.read_batches(conn, DEFINITIONS, set(digests) - known.keys()):
            found = RequirementClass.from_json(row.definition)
            # A class of a later release is a family of its own.
            known[row.digest] = row.digest if found is None else shares.derive_family(found)
        if len(self._known) > _CACHE_SIZE:
            self._known.clear()
        self._known |= known
        return known


def count_jobs(conn: Connection, vo: str) -> dict[int, QueuedJobs]:
    """The jobs of each task queue of a VO that has any; reads all of them."""
    return _sum_jobs(conn.execute(COUNTED, {"vo": vo}))


def count_jobs_of(conn: Connection, task_queue_ids: Collection[int]) -> dict[int, QueuedJobs]:
    """The same of some task queues."""
    return _sum_jobs(sql.read_batches(conn, COUNTED_OF, task_queue_ids))


def _sum_jobs(rows: Iterable[Row[Any]]) -> dict[int, QueuedJobs]:
    by_priority: defaultdict[int, dict[float, int]] = defaultdict(dict)
    for row in rows:
        by_priority[row.task_queue_id][row.priority] = row.jobs
    return {
        task_queue_id: QueuedJobs(raw=shares.compute_raw_weight(jobs), jobs=sum(jobs.values()))
        for task_queue_id, jobs in by_priority.items()
    }


def list_weighted(
    conn: Connection, vo: str, families: FamilyCache, counted: Mapping[int, QueuedJobs]
) -> list[WeightedTaskQueue]:
    """The task queues of a VO with jobs, as these were `counted`, with all inputs of their weights."""
    rows = [row for row in conn.execute(OCCUPIED, {"vo": vo}) if row.task_queue_id in counted]
    family_of = families.read_families(conn, {row.digest for row in rows})
    return [
        WeightedTaskQueue(
            demand=ShareDemand(
                task_queue_id=row.task_queue_id,
                vo=vo,
                owner_group=row.owner_group,
                owner=row.owner,
                family=family_of[row.digest],
                raw=counted[row.task_queue_id].raw,
            ),
            digest=row.digest,
            weight=Weight(row.priority, row.supply),
            jobs=counted[row.task_queue_id].jobs,
        )
        for row in rows
    ]


def store_weights(
    conn: Connection, weights: Mapping[int, Weight], *, owner_groups: Collection[str], now: datetime
) -> None:
    """Change weights of task queues of these groups, by id, and notify the matchers.

    Locks the task queues in order of their ids, as all transactions do.
    """
    if weights:
        rows = [
            {"the_task_queue": number, "weight": weights[number].priority, "slots": weights[number].supply}
            for number in sorted(weights)
        ]
        conn.execute(SET_WEIGHT, rows)
        change_feed.append_changes(conn, change_feed.PRIORITY, owner_groups, now=now)


def read_weights(conn: Connection, owner_groups: Collection[str]) -> Mapping[int, Weight]:
    """Weights of the groups' task queues that have jobs."""
    rows = conn.execute(WEIGHTS_OF_GROUPS, {"ids": sorted(owner_groups)})
    return {row.task_queue_id: Weight(row.priority, row.supply) for row in rows}


#: Without Deleted: such a job was counted when it ended.
_ENDED = (JobStatus.DONE, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.KILLED)
_NOW = bindparam("now", type_=UtcTime())
_SECONDS_A_DAY = 86_400

_UNTIL = func.coalesce(attempts.c.closed_at, _NOW)
_SECONDS: Mapping[str, ColumnElement[Any]] = {
    "postgresql": extract("epoch", _UNTIL - attempts.c.started_at),
    "sqlite": (func.julianday(_UNTIL) - func.julianday(attempts.c.started_at)) * _SECONDS_A_DAY,
}


def _select_usage(seconds: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            jobs.c.owner,
            jobs.c.owner_group,
            requirement_classes.c.definition,
            func.sum(seconds).label("seconds"),
            func.count().label("attempts"),
        )
        .join(attempts, attempts.c.job_id == jobs.c.job_id)
        .join(task_queues, task_queues.c.task_queue_id == jobs.c.task_queue_id)
        .join(requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id)
        .where(jobs.c.vo == bindparam("vo"), attempts.c.started_at.is_not(None))
        .group_by(jobs.c.owner, jobs.c.owner_group, requirement_classes.c.class_id)
    )


#: Uses the index over status and time of the last change, which is the end of a final job.
ENDED = {
    dialect: _select_usage(seconds).where(
        jobs.c.status.in_([status.value for status in _ENDED]),
        jobs.c.updated_at >= bindparam("since"),
        jobs.c.updated_at < bindparam("before"),
    )
    for dialect, seconds in _SECONDS.items()
}
RUNNING = {
    dialect: _select_usage(seconds).where(
        jobs.c.status.in_([status.value for status in HELD]), attempts.c.closed_at.is_(None)
    )
    for dialect, seconds in _SECONDS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage:
    """Usage of an owner."""

    core_seconds: float = 0.0  #: with the minimum number of cores of the jobs
    jobs: int = 0  #: started attempts

    def __add__(self, other: "OwnerUsage") -> "OwnerUsage":
        return OwnerUsage(core_seconds=self.core_seconds + other.core_seconds, jobs=self.jobs + other.jobs)


UsageByHolder = Mapping[ShareHolder, OwnerUsage]


def sum_ended(conn: Connection, vo: str, *, since: datetime, before: datetime) -> UsageByHolder:
    """Usage by all attempts of the jobs that ended in this time."""
    # All attempts of a final job are closed, so "now" is not used.
    values = {"vo": vo, "since": since, "before": before, "now": before}
    return _sum_usage(conn, vo, ENDED[conn.dialect.name], values)


def sum_running(conn: Connection, vo: str, *, now: datetime) -> UsageByHolder:
    """Usage by running jobs until now."""
    return _sum_usage(conn, vo, RUNNING[conn.dialect.name], {"vo": vo, "now": now})


def _sum_usage(
    conn: Connection, vo: str, statement: Select[*tuple[Any, ...]], values: Mapping[str, object]
) -> UsageByHolder:
    found: defaultdict[ShareHolder, OwnerUsage] = defaultdict(OwnerUsage)
    for row in conn.execute(statement, values):
        found_class = RequirementClass.from_json(row.definition)
        cores = 1 if found_class is None else found_class.processors_min
        used = OwnerUsage(core_seconds=max(float(row.seconds), 0.0) * cores, jobs=row.attempts)
        found[ShareHolder(vo, row.owner_group, row.owner)] += used
    return found
