"""Recent usage by owner: wall time of their jobs, and number of attempts."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, extract, func, select

from cs_config.versions.tables import UtcTime
from taskqueue.schema.tables import attempts, jobs, requirement_classes, task_queues
from taskqueue.states import HELD, JobStatus
from taskqueue.task_queues.requirement_class import RequirementClass
from taskqueue.task_queues.shares import ShareHolder

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
        cores = RequirementClass.from_json(row.definition).processors_min
        used = OwnerUsage(core_seconds=max(float(row.seconds), 0.0) * cores, jobs=row.attempts)
        found[ShareHolder(vo, row.owner_group, row.owner)] += used
    return found
