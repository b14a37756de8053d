"""Job control by users and operators: kill and reschedule.

A job that leaves Waiting loses its waiting row here; a job that a pilot holds loses its attempt.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection

from taskqueue.errors import IllegalTransition, RescheduleLimit
from taskqueue.jobs import jobs, transitions
from taskqueue.jobs.transitions import MovedJob
from taskqueue.leases import attempts
from taskqueue.states import FINAL, HELD, JobStatus, may_come_from
from taskqueue.task_queues import task_queues

KILL_REQUESTED = "Marked for termination"
RESCHEDULED = "Job Rescheduled"


def kill_job(conn: Connection, job_id: int, *, source: str, now: datetime) -> None:
    """Kill a job; no effect if it is already Killed, IllegalTransition if it has ended otherwise."""
    if not kill_jobs(conn, [job_id], source=source, now=now):
        current = jobs.get_job(conn, job_id).status
        if current is not JobStatus.KILLED:
            raise IllegalTransition(job_id, current=current, wanted=JobStatus.KILLED)


def kill_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Kill the jobs that have not ended; their ids.

    A job assigned to a pilot is Killed at once; its attempt stays open, `ending`, until the pilot has
    delivered its output.
    """
    transitions.lock_jobs(conn, job_ids)
    wanted = JobStatus.KILLED
    moved = transitions.move_jobs(conn, job_ids, wanted, minor=KILL_REQUESTED, source=source, now=now)
    return _withdraw(conn, moved, wanted, now=now)


def reschedule_job(conn: Connection, job_id: int, *, source: str, now: datetime, maximum: int) -> None:
    """Reschedule a job: back through the optimizers, at most `maximum` times (RescheduleLimit)."""
    if reschedule_jobs(conn, [job_id], source=source, now=now, maximum=maximum):
        return
    current = jobs.get_job(conn, job_id).status
    if current not in may_come_from(JobStatus.RESCHEDULED):
        raise IllegalTransition(job_id, current=current, wanted=JobStatus.RESCHEDULED)
    raise RescheduleLimit(job_id, maximum=maximum)


def reschedule_jobs(
    conn: Connection, job_ids: Collection[int], *, source: str, now: datetime, maximum: int
) -> list[int]:
    """Reschedule the jobs whose status and number of reschedules allow it; their ids."""
    transitions.lock_jobs(conn, job_ids)
    wanted = JobStatus.RESCHEDULED
    moved = transitions.move_jobs(
        conn, job_ids, wanted, minor=RESCHEDULED, source=source, now=now, reschedules_below=maximum
    )
    return _withdraw(conn, moved, wanted, now=now)


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
