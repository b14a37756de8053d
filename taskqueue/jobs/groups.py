"""Groups of jobs: failed ones by place and cause, and the progress of job groups.

Both look at the newest jobs only, so that their cost does not grow with the history: `GroupCounts.is_cut`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, Function, Subquery, case, func, select, union_all

from requirements.job_fields import STATUS
from requirements.states import FINAL, JobStatus
from taskqueue.jobs import jobs, search
from taskqueue.jobs.search import JobSelector
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.schema.tables import attempts, waiting_jobs
from taskqueue.schema.tables import jobs as table

Group = TypeVar("Group")

#: Newest failed jobs that are grouped, and newest jobs of each status that are counted for job groups.
MAX_FAILED = 20_000
MAX_OF_STATUS = 20_000
#: Jobs of a group, evenly from the newest ones, whose run times are read.
MAX_RUN_TIMES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failed jobs with the same site, exit code and minor status."""

    site: str
    exit_code: int | None  #: of the latest attempt; None: the payload did not end
    minor_status: str
    count: int
    vos: int  #: number of VOs
    newest: int  #: id of the newest of them
    last_at: datetime  #: when the latest one failed


_LATER: Final = (JobStatus.COMPLETED, *FINAL)
_RUNNING: Final = (JobStatus.RUNNING, JobStatus.COMPLETING)
_STARTED: Final = (*_RUNNING, JobStatus.STALLED)
#: The parts of a job group, by their fields, with their statuses.
PARTS: Final[Mapping[str, Collection[JobStatus]]] = {
    "done": (JobStatus.DONE, JobStatus.COMPLETED),
    "failed": (JobStatus.FAILED,),
    "killed": (JobStatus.KILLED, JobStatus.DELETED),
    "running": _STARTED,
    "waiting": tuple(each for each in JobStatus if each not in (*_STARTED, *_LATER)),
}
#: Statuses of jobs that no pilot has yet.
BEFORE_PILOTS: Final = tuple(each for each in PARTS["waiting"] if each is not JobStatus.MATCHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroupProgress:
    """Jobs of one owner with the same `JobGroup`."""

    vo: str
    owner: str
    job_group: str
    count: int
    waiting: int  #: in the statuses of `PARTS`, as the following
    running: int
    done: int
    failed: int
    killed: int
    stuck: int  #: of the waiting, without an eligible queue
    ended_lately: int  #: since the time that was asked for
    first_at: datetime  #: earliest submission
    last_at: datetime  #: latest change


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWaiting:
    """The job that a task queue hands out last of those asked for."""

    job_id: int
    task_queue_id: int | None  #: None: it is in none, such as while an optimizer holds it
    count: int  #: jobs asked for in this task queue, or in none


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJobs:
    """Jobs that pilots have, and that have not ended."""

    count: int
    last_at: datetime | None  #: latest start; None: none has started yet


class RunTime(NamedTuple):
    """How long a job has run."""

    seconds: float
    is_done: bool  #: if not, it still runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeSample:
    """Run times of done and running jobs, or of an even part of these."""

    times: Sequence[RunTime]
    done: int  #: done jobs, of which there may be none in the part


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts(Generic[Group]):
    """Groups, the largest or latest first."""

    groups: Sequence[Group]
    is_cut: bool  #: there are older jobs that were not looked at


def group_failures(
    conn: Connection, which: JobSelector, *, since: datetime, limit: int
) -> GroupCounts[FailureGroup]:
    """The newest failed jobs that failed since then, by site, exit code and minor status."""
    seen, rest = _newest(conn, which.where(STATUS, {JobStatus.FAILED}), MAX_FAILED)
    if seen is None:
        return GroupCounts(groups=[], is_cut=False)
    by = (seen.c.site, attempts.c.exit_code, seen.c.minor_status)
    latest = (attempts.c.job_id == seen.c.job_id) & (attempts.c.epoch == seen.c.epoch)
    number = func.count().label("count")
    statement = (
        select(
            *by,
            number,
            func.count(seen.c.vo.distinct()).label("vos"),
            func.max(seen.c.job_id).label("newest"),
            func.max(seen.c.updated_at, type_=seen.c.updated_at.type).label("last_at"),
        )
        .select_from(seen.outerjoin(attempts, latest))
        .where(seen.c.updated_at >= since, *rest.clauses(seen))
        .group_by(*by)
        .order_by(number.desc())
        .limit(limit)
    )
    found = [FailureGroup(**row._asdict()) for row in conn.execute(statement)]
    return GroupCounts(groups=found, is_cut=_is_cut(conn, seen, MAX_FAILED))


def list_progress(
    conn: Connection, which: JobSelector, *, since: datetime, limit: int, part: str = ""
) -> GroupCounts[JobGroupProgress]:
    """Progress of the job groups with the latest changes; `since` is for `ended_lately`.

    Only those with `part` in their names, in any case.
    """
    seen, rest = _newest(conn, which.where(STATUS, JobStatus), MAX_OF_STATUS)
    if seen is None:
        return GroupCounts(groups=[], is_cut=False)
    by = (seen.c.vo, seen.c.owner, seen.c.job_group)
    status, at = seen.c.status, seen.c.updated_at.type
    is_stuck = (status == JobStatus.WAITING.value) & (seen.c.minor_status == NO_ELIGIBLE_QUEUE)
    last = func.max(seen.c.updated_at, type_=at)
    statement = (
        select(
            *by,
            func.count().label("count"),
            *(_sum(status.in_(statuses)).label(name) for name, statuses in PARTS.items()),
            _sum(is_stuck).label("stuck"),
            _sum(seen.c.ended_at >= since).label("ended_lately"),
            func.min(seen.c.submitted_at, type_=at).label("first_at"),
            last.label("last_at"),
        )
        .where(
            seen.c.job_group != "",
            func.lower(seen.c.job_group).contains(part.lower(), autoescape=True),
            *rest.clauses(seen),
        )
        .group_by(*by)
        .order_by(last.desc())
        .limit(limit)
    )
    found = [JobGroupProgress(**row._asdict()) for row in conn.execute(statement)]
    return GroupCounts(groups=found, is_cut=_is_cut(conn, seen, MAX_OF_STATUS))


def list_last_waiting(conn: Connection, which: JobSelector, *, limit: int) -> GroupCounts[LastWaiting]:
    """The last of the jobs `BEFORE_PILOTS` in each task queue, by task queue; `limit` task queues at most."""
    seen, rest = _newest(conn, which.where(STATUS, BEFORE_PILOTS), MAX_OF_STATUS)
    if seen is None:
        return GroupCounts(groups=[], is_cut=False)
    by = waiting_jobs.c.task_queue_id
    order = (waiting_jobs.c.priority, seen.c.job_id.desc())
    numbered = (
        select(
            *(seen.c.job_id, by, func.count().over(partition_by=by).label("count")),
            func.row_number().over(partition_by=by, order_by=order).label("from_last"),
        )
        .select_from(seen.outerjoin(waiting_jobs, waiting_jobs.c.job_id == seen.c.job_id))
        .where(*rest.clauses(seen))
        .subquery()
    )
    found = numbered.c
    statement = select(found.job_id, found.task_queue_id, found.count).where(found.from_last == 1)
    rows = conn.execute(statement.order_by(found.task_queue_id.nulls_first()).limit(limit))
    return GroupCounts(
        groups=[LastWaiting(**row._asdict()) for row in rows], is_cut=_is_cut(conn, seen, MAX_OF_STATUS)
    )


def count_started(conn: Connection, which: JobSelector) -> StartedJobs:
    """How many pilots have, and when the last of them started."""
    seen, rest = _newest(conn, which.where(STATUS, {JobStatus.MATCHED, *_STARTED}), MAX_OF_STATUS)
    if seen is None:
        return StartedJobs(count=0, last_at=None)
    last = func.max(seen.c.started_at, type_=seen.c.started_at.type)
    row = conn.execute(select(func.count(), last).select_from(seen).where(*rest.clauses(seen))).one()
    return StartedJobs(count=row[0], last_at=row[1])


def list_run_times(conn: Connection, which: JobSelector, *, now: datetime) -> RunTimeSample:
    """Run times of the newest done and running jobs, or of each second, third … of them if they are many.

    Of stalled ones it is not known how long they have run.
    """
    seen, rest = _newest(conn, which.where(STATUS, {*PARTS["done"], *_RUNNING}), MAX_OF_STATUS)
    if seen is None:
        return RunTimeSample(times=[], done=0)
    is_done = seen.c.status.in_(PARTS["done"])
    has_run = (seen.c.started_at.is_not(None), ~is_done | seen.c.ended_at.is_not(None), *rest.clauses(seen))
    number = func.row_number().over(order_by=seen.c.job_id.desc()) - 1
    numbered = (
        select(seen.c.started_at, seen.c.ended_at, is_done.label("is_done"))
        .add_columns(number.label("number"), func.count().over().label("count"))
        .add_columns(_sum(is_done).over().label("done"))
        .where(*has_run)
        .subquery()
    )
    found = numbered.c
    one_of = (found["count"] - 1) // MAX_RUN_TIMES + 1
    columns = (found.started_at, found.ended_at, found.is_done, found.done)
    rows = conn.execute(select(*columns).where(found.number % one_of == 0)).all()
    times = [
        RunTime(
            seconds=((row.ended_at if row.is_done else now) - row.started_at).total_seconds(),
            is_done=bool(row.is_done),
        )
        for row in rows
    ]
    return RunTimeSample(times=times, done=rows[0].done if rows else 0)


def _newest(conn: Connection, which: JobSelector, most: int) -> tuple[Subquery | None, JobSelector]:
    """The newest rows of each index path, and the conditions that are still to be tested."""
    found = search.plan_paths(conn, which)
    if not found.ways:
        return None, which
    order = table.c.job_id.desc()
    along = [select(*jobs.COLUMNS).where(way).order_by(order).limit(most).subquery() for way in found.ways]
    return union_all(*map(select, along)).subquery(), found.rest


def _is_cut(conn: Connection, seen: Subquery, most: int) -> bool:
    by_status = select(func.count().label("rows")).select_from(seen).group_by(seen.c.status).subquery()
    rows: int | None = conn.execute(select(func.max(by_status.c.rows))).scalar_one()
    return (rows or 0) >= most


def _sum(condition: ColumnElement[Any]) -> Function[int]:
    return func.sum(case((condition, 1), else_=0))
