"""Expiry of leases: jobs that were not started in time, stalled jobs, and stalled jobs that are given up.

A batch system that does not list a job proves nothing; only elapsed time does. A silent job is first
Stalled, which the pilot's next heartbeat undoes, and rescheduled only after a grace time. Attempts are
locked with SKIP LOCKED: a locked one is just being reported on, so its pilot is not silent.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Select, and_, bindparam, case, func, select, update

from taskqueue.jobs import control, jobs, log, transitions
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.transitions import MovedJob
from taskqueue.leases import attempts
from taskqueue.leases.attempts import Attempt
from taskqueue.schema.tables import attempts as table
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.states import RESUMABLE, JobStatus
from taskqueue.task_queues import task_queues

SOURCE = "LostJobAgent"
#: Source of resumed jobs in the log.
HOLDER = "Pilot"
NOT_STARTED = "Pilot did not start the job in time"
STALLED = "Watchdog identified this job as stalled"
KILLED_AND_SILENT = "The pilot of the killed job is silent"
GIVEN_UP = "Maximum of reschedulings reached"
RESUMED = "Resumed by the pilot that had been lost"

_OPEN = and_(table.c.vo == bindparam("vo"), table.c.closed_at.is_(None))


def _limit_rows(statement: Select[int]) -> Select[int]:
    return (
        statement.order_by(table.c.job_id)
        .limit(bindparam("most"))
        .with_for_update(of=table, skip_locked=True)
    )


EXPIRED = _limit_rows(
    select(table.c.job_id).where(
        _OPEN,
        table.c.started_at.is_(None),
        table.c.ending.is_(False),
        table.c.lease_expires_at < bindparam("now"),
        table.c.opened_at < bindparam("silent_since"),
    )
)
ENDED_IN_SILENCE = _limit_rows(
    select(table.c.job_id).where(
        _OPEN,
        table.c.ending.is_(True),
        table.c.lease_expires_at < bindparam("now"),
        func.coalesce(table.c.heartbeat_at, table.c.opened_at) < bindparam("silent_since"),
    )
)


def _select_silent(*statuses: JobStatus) -> Select[int]:
    return _limit_rows(
        select(table.c.job_id)
        .join(jobs_table, jobs_table.c.job_id == table.c.job_id)
        .where(
            _OPEN,
            table.c.heartbeat_at < bindparam("silent_since"),
            jobs_table.c.status.in_([status.value for status in statuses]),
        )
    )


SILENT = _select_silent(JobStatus.RUNNING, JobStatus.COMPLETING)
STALLED_LONG = _select_silent(JobStatus.STALLED).where(jobs_table.c.updated_at < bindparam("stalled_since"))

#: The old state in the WHERE: no effect if the job was claimed, killed or rescheduled meanwhile.
RESUME = (
    update(jobs_table)
    .where(
        jobs_table.c.job_id == bindparam("the_job"),
        jobs_table.c.epoch == bindparam("the_epoch"),
        jobs_table.c.status.in_(sorted(RESUMABLE)),
    )
    .values(
        status=JobStatus.RUNNING.value,
        minor_status=RESUMED,
        application_status="",
        site=bindparam("the_site"),
        started_at=bindparam("begun_at"),
        updated_at=bindparam("now"),
        due_at=None,
        step=None,
        # Undo the count of the rescheduling.
        reschedules=case((jobs_table.c.reschedules > 0, jobs_table.c.reschedules - 1), else_=0),
    )
)


def expire_leases(
    conn: Connection, *, vo: str, silent_since: datetime, now: datetime, most: int = 1000
) -> list[int]:
    """Return jobs that were not started within the lease to their task queues, without penalty; their ids.

    Jobs matched after `silent_since` are left alone: the service was not up all the time since then.
    """
    values = {"vo": vo, "silent_since": silent_since, "now": now, "most": most}
    found = conn.execute(EXPIRED, values).scalars().all()
    moved = transitions.move_jobs(
        conn,
        found,
        JobStatus.WAITING,
        minor=NOT_STARTED,
        source=SOURCE,
        now=now,
        from_states=frozenset({JobStatus.MATCHED}),
    )
    ids = _list_ids(moved)
    attempts.close_attempts(conn, found, closed_as="expired", now=now)
    task_queues.requeue(conn, ids, now=now)
    return ids


def close_killed(
    conn: Connection, *, vo: str, silent_since: datetime, now: datetime, most: int = 1000
) -> list[int]:
    """Close the attempts of killed jobs whose pilots are silent; the ids of the jobs.

    Jobs whose pilots reported after `silent_since` are left alone.
    """
    values = {"vo": vo, "silent_since": silent_since, "now": now, "most": most}
    found = conn.execute(ENDED_IN_SILENCE, values).scalars().all()
    attempts.close_attempts(conn, found, closed_as="killed", now=now)
    transitions.log_note(conn, found, minor=KILLED_AND_SILENT, source=SOURCE, now=now)
    return list(found)


def mark_stalled(
    conn: Connection, *, vo: str, silent_since: datetime, now: datetime, most: int = 1000
) -> list[int]:
    """Mark jobs Stalled whose pilots have been silent since then; their ids."""
    values = {"vo": vo, "silent_since": silent_since, "most": most}
    found = conn.execute(SILENT, values).scalars().all()
    return _list_ids(
        transitions.move_jobs(conn, found, JobStatus.STALLED, minor=STALLED, source=SOURCE, now=now)
    )


def give_up_stalled(
    conn: Connection,
    *,
    vo: str,
    silent_since: datetime,
    stalled_since: datetime,
    max_rescheduling: int,
    now: datetime,
    most: int = 1000,
) -> tuple[list[int], list[int]]:
    """End Stalled jobs whose grace time is over: the ids of rescheduled ones, and of failed ones.

    A job fails if it has already been rescheduled `max_rescheduling` times.
    """
    values = {"vo": vo, "silent_since": silent_since, "stalled_since": stalled_since, "most": most}
    found: Sequence[int] = conn.execute(STALLED_LONG, values).scalars().all()
    again = _list_ids(
        transitions.move_jobs(
            conn,
            found,
            JobStatus.RESCHEDULED,
            minor=control.RESCHEDULED,
            application=STALLED,
            source=SOURCE,
            now=now,
            reschedules_below=max_rescheduling,
        )
    )
    failed = _list_ids(
        transitions.move_jobs(
            conn,
            sorted(set(found) - set(again)),
            JobStatus.FAILED,
            minor=GIVEN_UP,
            application=STALLED,
            source=SOURCE,
            now=now,
            from_states=frozenset({JobStatus.STALLED}),
        )
    )
    attempts.close_attempts(conn, again, closed_as=attempts.LOST, now=now)
    attempts.close_attempts(conn, failed, closed_as="failed", now=now)
    return again, failed


def resume(conn: Connection, attempt: Attempt, *, now: datetime) -> bool:
    """Return a job to the holder of an attempt that was closed as lost; called when it reports.

    The job counts in limits and reservations again, even if these are exceeded: it is running. False: the job
    was assigned or rescheduled since, or is final.
    """
    transitions.lock_jobs(conn, [attempt.job_id])
    [locked] = attempts.lock_attempts(conn, [attempt.lease])
    if locked.closed_as != attempts.LOST:
        return False
    before = jobs.get_job(conn, attempt.job_id)
    values = {
        "the_job": attempt.job_id,
        "the_epoch": attempt.epoch,
        "the_site": attempt.site or "ANY",
        "begun_at": attempt.started_at,
        "now": now,
    }
    if not conn.execute(RESUME, values).rowcount:
        return False
    task_queues.dequeue(conn, [attempt.job_id])
    attempts.reopen(conn, attempt.lease, now=now)
    entry = LogEntry(
        job_id=attempt.job_id,
        at=now,
        from_status=before.status,
        to_status=JobStatus.RUNNING,
        minor_status=RESUMED,
        source=HOLDER,
        epoch=attempt.epoch,
    )
    log.append(conn, [entry])
    return True


def _list_ids(moved: Sequence[MovedJob]) -> list[int]:
    return [each.job_id for each in moved]
