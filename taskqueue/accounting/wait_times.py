"""Time that jobs waited, by cause: computed from the job log, stored once when the job ends.

The log gives the status at each time; the causes while a job was Waiting (limits, bans, throttles) are
stored for each task queue once a minute, outside of claims. Stored wait times outlive the log.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, or_, select, union_all

from requirements.states import FINAL, JobStatus
from taskqueue.db import sql
from taskqueue.jobs import edits, log, withheld
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.schema.tables import job_waits as job_waits_table
from taskqueue.schema.tables import jobs
from taskqueue.task_queues import wait_causes
from taskqueue.task_queues.wait_causes import PILOT_CAUSE, WaitCause

#: Cause by status, except Waiting, which has several.
_CAUSES: Mapping[JobStatus, str] = {
    JobStatus.SUBMITTING: "confirmation",
    JobStatus.RECEIVED: "optimizers",
    JobStatus.CHECKING: "held by an optimizer",
    JobStatus.SCOUTING: "scout jobs",
    JobStatus.STAGING: "input data",
    JobStatus.RESCHEDULED: "optimizers",
    JobStatus.MATCHED: "start of the pilot's job",
    JobStatus.STALLED: "silent pilot",
}


def sum_by_cause(
    log: Sequence[LogEntry], *, now: datetime, causes: Sequence[WaitCause] = ()
) -> dict[str, float]:
    """Seconds by cause, from all changes of a job's status, in order; running is no waiting.

    `now` ends the wait of a job that is not final; `causes` are those stored for its task queues.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    ends = [*(entry.at for entry in log[1:]), now][: len(log)]
    cause: str | None = None
    for entry, end in zip(log, ends, strict=True):
        cause = cause if _is_edit_in_place(entry) else _get_cause(entry)
        if cause == PILOT_CAUSE:
            for hindered_by, seconds in wait_causes.split_wait(entry.at, end, causes).items():
                spent[hindered_by] += seconds
        elif cause is not None:
            spent[cause] += max(0.0, (end - entry.at).total_seconds())
    return {cause: round(seconds, 3) for cause, seconds in sorted(spent.items(), key=lambda each: -each[1])}


def _is_edit_in_place(entry: LogEntry) -> bool:
    """Whether a job was edited that goes on waiting for the same: one that is kept from pilots."""
    return entry.from_status is entry.to_status is JobStatus.CHECKING and entry.minor_status == edits.EDITED


def _get_cause(entry: LogEntry) -> str | None:
    if entry.to_status in FINAL:
        return None
    if entry.to_status is JobStatus.WAITING:
        return "no eligible queue" if entry.minor_status == NO_ELIGIBLE_QUEUE else PILOT_CAUSE
    if entry.to_status is JobStatus.CHECKING and entry.minor_status in withheld.WAIT_CAUSES:
        return withheld.WAIT_CAUSES[entry.minor_status]
    return _CAUSES.get(entry.to_status)


_is_stored = (
    select(job_waits_table.c.job_id)
    .where(job_waits_table.c.job_id == jobs.c.job_id, job_waits_table.c.ended_at == jobs.c.updated_at)
    .exists()
)


def _select_ended(status: JobStatus) -> Select[*tuple[Any, ...]]:
    """Select ended jobs in the order of the index over status and time: within one status only."""
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


_scanned = union_all(*map(_select_ended, sorted(FINAL))).subquery()
#: Limits the rows scanned, not those found: most jobs are stored already, and there may be a year of them.
ENDED = (
    select(_scanned.c.job_id, _scanned.c.updated_at)
    .order_by(_scanned.c.updated_at, _scanned.c.job_id)
    .limit(bindparam("most"))
)
#: A job that was restarted and ended again is stored again.
NOT_STORED = select(jobs.c.job_id, jobs.c.updated_at, jobs.c.task_queue_id).where(
    sql.is_listed(jobs.c.job_id), ~_is_stored
)
DELETE_WAITS = delete(job_waits_table).where(sql.is_listed(job_waits_table.c.job_id))
#: The agents `waits` and `retention` may store those of one job at the same time.
STORE_WAITS = sql.insert_or_update(job_waits_table, "seconds", "ended_at")
WAITS_OF_JOB = select(job_waits_table.c.cause, job_waits_table.c.seconds).where(
    job_waits_table.c.job_id == bindparam("the_job")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """Position in the scan of ended jobs: by time of the end, then id."""

    at: datetime
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingResult:
    """Outcome of `store_ended`."""

    jobs: int  #: newly stored ones
    last: EndedJob | None  #: the last one scanned; None: no more


def list_ended(conn: Connection, *, since: EndedJob, until: datetime, most: int) -> list[EndedJob]:
    """The first `most` jobs that ended after `since`, in the order of their ends."""
    values = {"since": since.at, "after": since.job_id, "until": until, "most": most}
    return [EndedJob(at=row.updated_at, job_id=row.job_id) for row in conn.execute(ENDED, values)]


def store_ended(conn: Connection, *, since: EndedJob, until: datetime, most: int) -> BookingResult:
    """Store the wait times of jobs that ended after `since`, scanning at most `most` of them."""
    ended = list_ended(conn, since=since, until=until, most=most)
    last = ended[-1] if len(ended) == most else None
    return BookingResult(jobs=store_waits(conn, [each.job_id for each in ended]), last=last)


def store_waits(conn: Connection, job_ids: Collection[int]) -> int:
    """Store the wait times of these ended jobs; how many were not stored before."""
    ended = conn.execute(NOT_STORED, {"ids": sorted(job_ids)}).all()
    logs: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for entry in log.read_logs(conn, [row.job_id for row in ended]):
        logs[entry.job_id].append(entry)
    # Since the first of the jobs came.
    since = min((entries[0].at for entries in logs.values()), default=None)
    task_queue_ids = {row.job_id: row.task_queue_id for row in ended}
    seen = {} if since is None else wait_causes.read_causes_of_jobs(conn, task_queue_ids, since=since)
    rows = [
        {"job_id": row.job_id, "cause": cause, "seconds": seconds, "ended_at": row.updated_at}
        for row in ended
        for cause, seconds in sum_by_cause(
            logs[row.job_id], now=row.updated_at, causes=seen.get(row.job_id, ())
        ).items()
    ]
    if rows:
        conn.execute(DELETE_WAITS, {"ids": sorted({row["job_id"] for row in rows})})
        rows.sort(key=itemgetter("job_id", "cause"))  # two agents lock them in the same order
        conn.execute(STORE_WAITS, rows)
    return len(ended)


def read_waits(conn: Connection, job_id: int) -> dict[str, float]:
    """Stored wait times of a job, longest first; empty: none."""
    found = [(row.cause, row.seconds) for row in conn.execute(WAITS_OF_JOB, {"the_job": job_id})]
    return dict(sorted(found, key=lambda each: -each[1]))


def sum_until_now(
    conn: Connection, job: Job, entries: Sequence[LogEntry], *, now: datetime
) -> dict[str, float]:
    """Wait times of a job until now; without its log, the stored ones."""
    if not entries:
        return read_waits(conn, job.job_id)
    of_job = {job.job_id: job.task_queue_id}
    seen = wait_causes.read_causes_of_jobs(conn, of_job, since=entries[0].at)
    return sum_by_cause(entries, now=now, causes=seen[job.job_id])
