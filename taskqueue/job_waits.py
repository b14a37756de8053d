"""For what jobs that have ended had waited: written down once, to outlive their log and to be summed."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    union_all,
)

from taskqueue import hindrances, log, waiting_time
from taskqueue.hindrances import Hindrance
from taskqueue.jobs import Job
from taskqueue.log import LogEntry
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import job_waits as table
from taskqueue.tables import jobs

_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)
_is_booked = (
    select(table.c.job_id)
    .where(table.c.job_id == jobs.c.job_id, table.c.ended_at == jobs.c.updated_at)
    .exists()
)


def _ended(status: JobStatus) -> Select[*tuple[Any, ...]]:
    """In the order of the index over status and time; of all statuses at once there is no such order."""
    at, job_id = jobs.c.updated_at, jobs.c.job_id
    since = bindparam("since", type_=at.type)
    found = (
        select(job_id, at)
        .where(
            jobs.c.status == status.value,
            at >= since,
            at <= bindparam("until", type_=at.type),
            or_(at > since, job_id > bindparam("after")),
        )
        .order_by(at, job_id)
        .limit(bindparam("most"))
        .subquery()
    )
    return select(found)


_looked_at = union_all(*map(_ended, sorted(FINAL))).subquery()
#: So many are looked at, not so many found: most are booked already, and there may be a year of them.
ENDED = (
    select(_looked_at.c.job_id, _looked_at.c.updated_at)
    .order_by(_looked_at.c.updated_at, _looked_at.c.job_id)
    .limit(bindparam("most"))
)
#: A job that was started again and ended again is counted anew.
OF_THESE = select(jobs.c.job_id, jobs.c.updated_at, jobs.c.task_queue_id).where(
    jobs.c.job_id.in_(_IDS), ~_is_booked
)
FORGET = delete(table).where(table.c.job_id.in_(_IDS))
BOOK = insert(table)
OF_JOB = select(table.c.cause, table.c.seconds).where(table.c.job_id == bindparam("the_job"))


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """When which job ended: the order in which they are looked at."""

    at: datetime
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """What `book_ended` did."""

    jobs: int  #: that were not written down before
    last: End | None  #: the last one that was looked at; None: there is no more


def book_ended(conn: Connection, *, since: End, until: datetime, most: int) -> Booked:
    """Write down for what jobs had waited that ended after `since`, looking at so many of them."""
    values = {"since": since.at, "after": since.job_id, "until": until, "most": most}
    rows = conn.execute(ENDED, values).all()
    last = End(at=rows[-1].updated_at, job_id=rows[-1].job_id) if len(rows) == most else None
    return Booked(jobs=book(conn, [row.job_id for row in rows]), last=last)


def book(conn: Connection, job_ids: Collection[int]) -> int:
    """The same for these, which have ended; for how many it was not written down before."""
    rows = conn.execute(OF_THESE, {"job_ids": sorted(job_ids)}).mappings().all()
    _book(conn, rows)
    return len(rows)


def of_job(conn: Connection, job_id: int) -> dict[str, float]:
    """What was written down of one job, the longest first; empty: nothing."""
    found = [(row.cause, row.seconds) for row in conn.execute(OF_JOB, {"the_job": job_id})]
    return dict(sorted(found, key=lambda each: -each[1]))


def running_total(
    conn: Connection, job: Job, entries: Sequence[LogEntry], *, now: datetime
) -> dict[str, float]:
    """For what a job has waited until now; without its log, what was written down of it."""
    if not entries:
        return of_job(conn, job.job_id)
    seen: Sequence[Hindrance] = ()
    if job.task_queue_id is not None:
        found = hindrances.of_task_queues(conn, [job.task_queue_id], since=entries[0].at)
        seen = found.get(job.task_queue_id, ())
    return waiting_time.by_cause(entries, now=now, hindrances=seen)


def sums(
    conn: Connection, by: Sequence[ColumnElement[str]], clauses: Sequence[ColumnElement[bool]]
) -> Mapping[tuple[str | None, ...], Mapping[str, float]]:
    """Seconds by cause of the ended jobs for each combination of values of some columns of jobs."""
    statement = (
        select(*by, table.c.cause, func.sum(table.c.seconds))
        .join(jobs, jobs.c.job_id == table.c.job_id)
        .where(*clauses)
        .group_by(*by, table.c.cause)
    )
    found: defaultdict[tuple[str | None, ...], dict[str, float]] = defaultdict(dict)
    for *values, cause, seconds in conn.execute(statement):
        found[tuple(values)][cause] = round(float(seconds), 3)
    return found


def _book(conn: Connection, ended: Sequence[RowMapping]) -> None:
    logs: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for entry in log.of_jobs(conn, [row["job_id"] for row in ended]):
        logs[entry.job_id].append(entry)
    seen = _hindrances(conn, ended, logs)
    rows = [
        {"job_id": row["job_id"], "cause": cause, "seconds": seconds, "ended_at": row["updated_at"]}
        for row in ended
        for cause, seconds in waiting_time.by_cause(
            logs[row["job_id"]], now=row["updated_at"], hindrances=seen.get(row["task_queue_id"], ())
        ).items()
    ]
    if rows:
        conn.execute(FORGET, {"job_ids": sorted({row["job_id"] for row in rows})})
        conn.execute(BOOK, rows)


def _hindrances(
    conn: Connection, ended: Sequence[RowMapping], logs: Mapping[int, Sequence[LogEntry]]
) -> Mapping[int, Sequence[Hindrance]]:
    """What kept the jobs of their task queues from pilots, since the first of them came."""
    task_queue_ids = {row["task_queue_id"] for row in ended if row["task_queue_id"] is not None}
    since = min((entries[0].at for entries in logs.values()), default=None)
    if since is None or not task_queue_ids:
        return {}
    return hindrances.of_task_queues(conn, task_queue_ids, since=since)
