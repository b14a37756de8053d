"""Jobs whose pilots are silent: not begun in time, stalled, given up.

A lookup that finds nothing proves nothing; only time does. A silent job is first Stalled, which its
pilot's next heartbeat ends, and rescheduled only after a grace time. Attempts are locked with SKIP
LOCKED: one whose pilot is just reporting is not silent.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Select, bindparam, select

from taskqueue import attempts, job_control, task_queues, transitions
from taskqueue.states import JobStatus
from taskqueue.tables import attempts as table
from taskqueue.tables import jobs
from taskqueue.transitions import Moved

SOURCE = "LostJobAgent"
NOT_STARTED = "Pilot did not start the job in time"
STALLED = "Watchdog identified this job as stalled"
KILLED_AND_SILENT = "The pilot of the killed job is silent"
GIVEN_UP = "Maximum of reschedulings reached"

_OPEN = table.c.closed_at.is_(None)


def _some(statement: Select[int]) -> Select[int]:
    return (
        statement.order_by(table.c.job_id)
        .limit(bindparam("most"))
        .with_for_update(of=table, skip_locked=True)
    )


NOT_STARTED_IN_TIME = _some(
    select(table.c.job_id).where(
        _OPEN,
        table.c.started_at.is_(None),
        table.c.ending.is_(False),
        table.c.lease_expires_at < bindparam("now"),
    )
)
ENDED_IN_SILENCE = _some(
    select(table.c.job_id).where(_OPEN, table.c.ending.is_(True), table.c.lease_expires_at < bindparam("now"))
)


def _silent(*statuses: JobStatus) -> Select[int]:
    return _some(
        select(table.c.job_id)
        .join(jobs, jobs.c.job_id == table.c.job_id)
        .where(
            _OPEN,
            table.c.vo == bindparam("vo"),
            table.c.heartbeat_at < bindparam("silent_since"),
            jobs.c.status.in_([status.value for status in statuses]),
        )
    )


SILENT = _silent(JobStatus.RUNNING, JobStatus.COMPLETING)
SILENT_LONG = _silent(JobStatus.STALLED).where(jobs.c.updated_at < bindparam("stalled_since"))


def expire_leases(conn: Connection, *, now: datetime, most: int = 1000) -> list[int]:
    """Put jobs back that no pilot began within the lease, without penalty; their ids."""
    found = conn.execute(NOT_STARTED_IN_TIME, {"now": now, "most": most}).scalars().all()
    moved = transitions.move(
        conn,
        found,
        JobStatus.WAITING,
        minor=NOT_STARTED,
        source=SOURCE,
        now=now,
        from_states=frozenset({JobStatus.MATCHED}),
    )
    ids = _ids(moved)
    attempts.close(conn, found, closed_as="expired", now=now)
    task_queues.enqueue_again(conn, ids, now=now)
    return ids


def close_killed(conn: Connection, *, now: datetime, most: int = 1000) -> list[int]:
    """Close the attempts of killed jobs whose pilots do not answer any more; the ids of the jobs."""
    found = conn.execute(ENDED_IN_SILENCE, {"now": now, "most": most}).scalars().all()
    attempts.close(conn, found, closed_as="killed", now=now)
    transitions.note(conn, found, minor=KILLED_AND_SILENT, source=SOURCE, now=now)
    return list(found)


def stall(conn: Connection, *, vo: str, silent_since: datetime, now: datetime, most: int = 1000) -> list[int]:
    """Call those jobs Stalled whose pilots have been silent since then; their ids."""
    values = {"vo": vo, "silent_since": silent_since, "most": most}
    found = conn.execute(SILENT, values).scalars().all()
    return _ids(transitions.move(conn, found, JobStatus.STALLED, minor=STALLED, source=SOURCE, now=now))


def give_up(
    conn: Connection,
    *,
    vo: str,
    silent_since: datetime,
    stalled_since: datetime,
    max_rescheduling: int,
    now: datetime,
    most: int = 1000,
) -> tuple[list[int], list[int]]:
    """Take Stalled jobs back whose grace time is over.

    Returns:
        Those that were rescheduled, and those that failed since they had been too often.
    """
    values = {"vo": vo, "silent_since": silent_since, "stalled_since": stalled_since, "most": most}
    found: Sequence[int] = conn.execute(SILENT_LONG, values).scalars().all()
    again = _ids(
        transitions.move(
            conn,
            found,
            JobStatus.RESCHEDULED,
            minor=job_control.RESCHEDULED,
            application=STALLED,
            source=SOURCE,
            now=now,
            reschedules_below=max_rescheduling,
        )
    )
    failed = _ids(
        transitions.move(
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
    attempts.close(conn, again, closed_as="rescheduled", now=now)
    attempts.close(conn, failed, closed_as="failed", now=now)
    return again, failed


def _ids(moved: Sequence[Moved]) -> list[int]:
    return [each.job_id for each in moved]
