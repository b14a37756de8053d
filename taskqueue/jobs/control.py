"""Job control by users, operators and other systems: kill, delete, reschedule, reset, complete.

In the same transaction a job that waits leaves its task queue, and the attempt of a job that a pilot holds is
closed; that of a killed job stays open, as `ending`, until the pilot has delivered its output.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, exists, select, update

from requirements.states import FINAL, HELD, PREPARING, JobStatus, may_come_from
from taskqueue.db import sql
from taskqueue.errors import IllegalTransition
from taskqueue.jobs import jobs, transitions
from taskqueue.jobs.transitions import MovedJob
from taskqueue.leases import attempts
from taskqueue.schema.tables import job_log
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.task_queues import task_queues

KILL_REQUESTED = "Marked for termination"
RESCHEDULED = "Job Rescheduled"
#: Minor status of a completed job, by its status.
COMPLETIONS = {JobStatus.DONE: "Requests done", JobStatus.FAILED: "Requests failed"}

DELETED = "Job Deleted"

RESET = update(jobs_table).where(sql.is_listed(jobs_table.c.job_id)).values(reschedules=0)
IS_RESCHEDULED = select(jobs_table.c.job_id).where(
    sql.is_listed(jobs_table.c.job_id),
    jobs_table.c.status.in_(sorted(PREPARING | {JobStatus.WAITING})),
    exists().where(
        job_log.c.job_id == jobs_table.c.job_id,
        job_log.c.epoch == jobs_table.c.epoch,
        job_log.c.to_status == JobStatus.RESCHEDULED.value,
        job_log.c.from_status != job_log.c.to_status,
        job_log.c.source == bindparam("source"),
    ),
)


def kill_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Kill the jobs that have not ended; their ids.

    A job assigned to a pilot is Killed at once; its attempt stays open, `ending`, until the pilot has
    delivered its output.
    """
    transitions.lock_jobs(conn, job_ids)
    wanted = JobStatus.KILLED
    moved = transitions.move_jobs(conn, job_ids, wanted, minor=KILL_REQUESTED, source=source, now=now)
    return _withdraw(conn, moved, wanted, now=now)


def list_changeable(wanted: JobStatus) -> frozenset[JobStatus]:
    """The statuses in which a job can be changed to `wanted`: Killed, Deleted or Rescheduled."""
    before = may_come_from(wanted)
    return before | may_come_from(JobStatus.KILLED) if wanted is JobStatus.DELETED else before


def delete_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Delete the jobs, killing those that have not ended; the ids of those that were not deleted before.

    A deleted job is listed, with its log, until retention removes it. A Completed job stays as it is.
    """
    kill_jobs(conn, job_ids, source=source, now=now)
    wanted = JobStatus.DELETED
    return [
        moved.job_id
        for moved in transitions.move_jobs(conn, job_ids, wanted, minor=DELETED, source=source, now=now)
    ]


def reset_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Reschedule the jobs however often that was done before, and count from 0 again; their ids."""
    done = reschedule_jobs(conn, job_ids, source=source, now=now, maximum=transitions.NO_LIMIT)
    for ids in sql.split_batches(done):
        conn.execute(RESET, {"ids": ids})
    return done


def reschedule_jobs(
    conn: Connection, job_ids: Collection[int], *, source: str, now: datetime, maximum: int
) -> list[int]:
    """Send the jobs whose status and number of reschedules allow it back through the optimizers; their ids.

    A job that the same source has rescheduled, and that no pilot has got since, stays as it is and is among
    them: the request is repeated, because its answer was lost.
    """
    transitions.lock_jobs(conn, job_ids)
    repeated = [row.job_id for row in sql.read_batches(conn, IS_RESCHEDULED, job_ids, source=source)]
    others = frozenset(job_ids).difference(repeated)
    wanted = JobStatus.RESCHEDULED
    moved = transitions.move_jobs(
        conn, others, wanted, minor=RESCHEDULED, source=source, now=now, reschedules_below=maximum
    )
    return repeated + _withdraw(conn, moved, wanted, now=now)


def complete_job(
    conn: Connection, job_id: int, status: JobStatus, *, minor: str = "", source: str, now: datetime
) -> None:
    """End a Completed job as Done or Failed: the requests that were left are carried out, or have failed.

    No effect if it has that status already, IllegalTransition if it has another one.
    """
    completed = frozenset({JobStatus.COMPLETED})
    minor = minor or COMPLETIONS[status]
    if transitions.move_jobs(
        conn, [job_id], status, minor=minor, source=source, now=now, from_states=completed
    ):
        return
    current = jobs.get_job(conn, job_id).status
    if current is not status:
        raise IllegalTransition(job_id, current=current, wanted=status)


def _withdraw(conn: Connection, moved: Sequence[MovedJob], wanted: JobStatus, *, now: datetime) -> list[int]:
    """Remove moved jobs from their task queues and close their attempts; the ids of all.

    A job that starts over is not resumed by a pilot that lost it.
    """
    task_queues.dequeue(conn, [job.job_id for job in moved if job.from_status is JobStatus.WAITING])
    held = [job.job_id for job in moved if job.from_status in HELD]
    if wanted is JobStatus.KILLED:
        attempts.request_end(conn, held)
    else:
        attempts.close_attempts(conn, held, closed_as=wanted.lower(), now=now)
    if wanted not in FINAL:
        others = [job.job_id for job in moved if job.from_status not in HELD]
        attempts.end_lost(conn, others, closed_as=wanted.lower())
    return [job.job_id for job in moved]
