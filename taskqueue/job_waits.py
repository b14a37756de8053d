"""For what jobs that have ended had waited: written down once, to outlive their log and to be summed."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import BindParameter, ColumnElement, Connection, bindparam, delete, func, insert, select

from taskqueue import log, waiting_time
from taskqueue.log import LogEntry
from taskqueue.states import FINAL
from taskqueue.tables import job_waits as table
from taskqueue.tables import jobs

_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)
_is_booked = (
    select(table.c.job_id)
    .where(table.c.job_id == jobs.c.job_id, table.c.ended_at == jobs.c.updated_at)
    .exists()
)
#: A job that was started again and ended again is counted anew.
NOT_BOOKED = (
    select(jobs.c.job_id, jobs.c.updated_at)
    .where(
        jobs.c.status.in_(sorted(FINAL)),
        jobs.c.updated_at >= bindparam("since", type_=jobs.c.updated_at.type),
        ~_is_booked,
    )
    .order_by(jobs.c.updated_at)
    .limit(bindparam("most"))
)
OF_THESE = select(jobs.c.job_id, jobs.c.updated_at).where(jobs.c.job_id.in_(_IDS), ~_is_booked)
FORGET = delete(table).where(table.c.job_id.in_(_IDS))
BOOK = insert(table)
OF_JOB = select(table.c.cause, table.c.seconds).where(table.c.job_id == bindparam("the_job"))


def book_ended(conn: Connection, *, since: datetime, most: int) -> list[datetime]:
    """Write down for what jobs had waited that ended since then; when each ended, the earliest first."""
    rows = conn.execute(NOT_BOOKED, {"since": since, "most": most}).all()
    return _book(conn, {row.job_id: row.updated_at for row in rows})


def book(conn: Connection, job_ids: Collection[int]) -> None:
    """The same for these, which have ended and are about to lose their log."""
    rows = conn.execute(OF_THESE, {"job_ids": sorted(job_ids)}).all()
    _book(conn, {row.job_id: row.updated_at for row in rows})


def of_job(conn: Connection, job_id: int) -> dict[str, float]:
    """What was written down of one job, the longest first; empty: nothing."""
    found = [(row.cause, row.seconds) for row in conn.execute(OF_JOB, {"the_job": job_id})]
    return dict(sorted(found, key=lambda each: -each[1]))


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


def _book(conn: Connection, ended: Mapping[int, datetime]) -> list[datetime]:
    logs: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for entry in log.of_jobs(conn, ended):
        logs[entry.job_id].append(entry)
    rows = [
        {"job_id": job_id, "cause": cause, "seconds": seconds, "ended_at": ended[job_id]}
        for job_id, entries in logs.items()
        for cause, seconds in waiting_time.by_cause(entries, now=ended[job_id]).items()
    ]
    if rows:
        conn.execute(FORGET, {"job_ids": sorted({int(str(row["job_id"])) for row in rows})})
        conn.execute(BOOK, rows)
    return sorted(ended.values())
