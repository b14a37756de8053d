"""Jobs that are kept from pilots on purpose, each for one reason: a hold by their users, for instance.

Such a job is Checking, as DIRAC names a job that does not wait for a pilot yet, and it is never due: it is in
no task queue, no optimizer takes it, and it costs nothing. `step` names the reason, the minor status states
it, the application status has the details. A job that is let go passes the optimizers again, with the
configuration of that time, and has its old place among the jobs of its owner.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, select

from requirements.states import HELD_BY_USER, WITHOUT_PILOT, JobStatus
from taskqueue.db import sql
from taskqueue.jobs import transitions
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts
from taskqueue.schema.tables import jobs, put_off_jobs
from taskqueue.task_queues import task_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepReason:
    """A reason for which jobs are kept from pilots."""

    step: str  #: its name in the column `step`, where others have an optimizer
    minor: str  #: minor status
    let_go: str  #: minor status of a job that is let go
    wait_cause: str  #: in sums of what jobs waited for
    remedy: str  #: of the job in `{job_id}`


HOLD: Final = KeepReason(
    step="Hold",
    minor=HELD_BY_USER,
    let_go="Released",
    wait_cause="hold by its user",
    remedy="`pilotage job release {job_id}`",
)
DEPENDENCIES: Final = KeepReason(
    step="Dependencies",
    minor="Waits for other jobs",
    let_go="Other jobs ended",
    wait_cause="jobs before it",
    remedy="nothing, until they have ended",
)
REASONS: Final = (HOLD, DEPENDENCIES)

#: What else keeps some jobs: the details by job, of those that a reason of lower rank goes on keeping.
StillKept = Callable[[Connection, Collection[int]], Mapping[int, str]]
#: Asked about jobs that are let go, in this order, before they become due.
STILL_KEPT: Final[dict[KeepReason, StillKept]] = {}

_BY_MINOR: Mapping[str, KeepReason] = {each.minor: each for each in REASONS}
#: Causes in sums of what jobs waited for, by minor status.
WAIT_CAUSES: Final[Mapping[str, str]] = {each.minor: each.wait_cause for each in REASONS}

IS_WITHHELD = (
    jobs.c.status == JobStatus.CHECKING.value,
    jobs.c.due_at.is_(None),
    jobs.c.step.in_([each.step for each in REASONS]),
)
WITHHELD = select(jobs.c.job_id, jobs.c.step).where(sql.is_listed(jobs.c.job_id), *IS_WITHHELD)
#: Of jobs that are put off, as by a rule of retry with a delay: kept while something else keeps them.
DUE_LATER = select(jobs.c.job_id, jobs.c.due_at).where(
    sql.is_listed(jobs.c.job_id), jobs.c.due_at > bindparam("now", type_=jobs.c.due_at.type)
)
PUT_OFF = insert(put_off_jobs)
WERE_PUT_OFF = select(put_off_jobs).where(sql.is_listed(put_off_jobs.c.job_id))
FORGET = delete(put_off_jobs).where(put_off_jobs.c.job_id == bindparam("the_id"))
DUE = sql.bulk_update(jobs, "due_at", key="job_id")


def find_reason(job: Job) -> KeepReason | None:
    """Why a job is kept from pilots; None: it is not."""
    is_kept = job.status is JobStatus.CHECKING and job.due_at is None
    return _BY_MINOR.get(job.minor_status) if is_kept else None


def find_reasons(conn: Connection, job_ids: Collection[int]) -> Mapping[int, KeepReason]:
    """Why each of some jobs is kept from pilots; the others are left out."""
    by_step = {each.step: each for each in REASONS}
    return {row.job_id: by_step[row.step] for row in sql.read_batches(conn, WITHHELD, job_ids)}


def withhold(
    conn: Connection,
    job_ids: Collection[int],
    reason: KeepReason,
    *,
    details: str,
    source: str,
    now: datetime,
) -> list[int]:
    """Keep those of the jobs from pilots that no pilot has; the ids of all that are kept for this reason.

    Decided where the waiting row is locked: a claim that has it wins. A pilot that lost a job does not resume
    it, as with a rescheduling.
    """
    transitions.lock_jobs(conn, job_ids)
    due = sql.read_batches(conn, DUE_LATER, job_ids, now=now)
    before = [job_id for job_id, kept_for in find_reasons(conn, job_ids).items() if kept_for == reason]
    moved = transitions.move_jobs(
        conn,
        frozenset(job_ids).difference(before),
        JobStatus.CHECKING,
        minor=reason.minor,
        application=details,
        source=source,
        now=now,
        from_states=WITHOUT_PILOT,
        kept_for=reason.step,
    )
    kept = [job.job_id for job in moved]
    later = {row.job_id: row.due_at for row in due if row.job_id in set(kept)}
    if kept:
        conn.execute(FORGET, [{"the_id": job_id} for job_id in sorted(kept)])
    if later:
        conn.execute(PUT_OFF, [{"job_id": job_id, "due_at": at} for job_id, at in sorted(later.items())])
    task_queues.dequeue(conn, [job.job_id for job in moved if job.from_status is JobStatus.WAITING])
    attempts.end_lost(conn, kept, closed_as=reason.step.lower())
    return before + kept


def let_go(
    conn: Connection, job_ids: Collection[int], reason: KeepReason, *, source: str, now: datetime
) -> list[int]:
    """Let those of the jobs go that are kept for this reason; their ids: notify the optimizers of them.

    One that is kept for another reason as well stays where it is, for that one.
    """
    transitions.lock_jobs(conn, job_ids)
    free = {job_id for job_id, kept_for in find_reasons(conn, job_ids).items() if kept_for == reason}
    freed = sorted(free)
    for other, find_kept in STILL_KEPT.items():
        if other == reason:
            continue
        for job_id, details in find_kept(conn, free).items():
            _move(conn, [job_id], other.minor, source=source, now=now, details=details, kept_for=other.step)
            free.discard(job_id)
    _move(conn, free, reason.let_go, source=source, now=now)
    later = {row.job_id: row.due_at for row in sql.read_batches(conn, WERE_PUT_OFF, free)}
    if later:
        conn.execute(FORGET, [{"the_id": job_id} for job_id in sorted(later)])
        DUE.execute(
            conn, {"job_id": sorted(later), "due_at": [max(now, later[each]) for each in sorted(later)]}
        )
    return freed


def _move(
    conn: Connection,
    job_ids: Collection[int],
    minor: str,
    *,
    source: str,
    now: datetime,
    details: str = "",
    kept_for: str | None = None,
) -> None:
    transitions.move_jobs(
        conn,
        job_ids,
        JobStatus.CHECKING,
        minor=minor,
        application=details,
        source=source,
        now=now,
        from_states=frozenset({JobStatus.CHECKING}),
        kept_for=kept_for,
    )
