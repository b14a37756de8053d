"""Expiry of leases: jobs that were not started in time, stalled jobs, and stalled jobs that are given up.

A silent job is first Stalled, which the pilot's next heartbeat undoes, and rescheduled only when its payload
cannot run any more: after a grace time if its pilot has ended or was started again, else when the pilot must
have ended it (`Leases/RunOnTime`). A batch system that does not list a pilot proves nothing.

Each search serves all VOs at once: `silent_since` and the like have a time for each VO, and one for each VO
with times of single attempts (`make_key`); attempts without one are left alone. Attempts are locked with SKIP
LOCKED: a locked one is just being reported on, so its pilot is not silent.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    update,
)

from cs_config.options.retry_rules import PILOT_LOST, Ending
from requirements.states import PILOT_ENDS, RESUMABLE, JobStatus
from taskqueue.db import clock, sql
from taskqueue.jobs import control, jobs, log, transitions, unmatchable
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.transitions import MovedJob
from taskqueue.leases import attempts, retries, uptime
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.retries import FailedAttempt, Retry, RetryPlan, plan_nothing
from taskqueue.pilots.pilots import read_public_reason
from taskqueue.schema.tables import attempts as table
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.schema.tables import matching_delays, pilots
from taskqueue.task_queues import task_queues

SOURCE = "LostJobAgent"
#: Source of resumed jobs in the log.
HOLDER = "Pilot"
NOT_STARTED = "Pilot did not start the job in time"
STALLED = "Watchdog identified this job as stalled"
PILOT_ENDED = "The pilot of this job has ended"
KILLED_AND_SILENT = "The pilot of the killed job is silent"
GIVEN_UP = "Maximum of reschedulings reached"
RESUMED = "Resumed by the pilot that had been lost"
#: Characters of the reason of a pilot's end that become the application status of its jobs.
_LONGEST_REASON = 200

_OPEN = table.c.closed_at.is_(None)
#: Of an attempt among times by key: its VO, with the times of its own, if it has any (`make_key`).
_KEY = table.c.vo + func.coalesce(table.c.times, "")


def _limit_rows(statement: Select[int]) -> Select[int]:
    return (
        statement.order_by(table.c.job_id)
        .limit(bindparam("most"))
        .with_for_update(of=table, skip_locked=True)
    )


_SILENT_SINCE, _STALLED_SINCE, _ENDED_SINCE = (
    sql.time_of_key(name, _KEY) for name in ("silent_since", "stalled_since", "ended_since")
)


def _select_overdue(reported: ColumnElement[datetime], *conditions: ColumnElement[bool]) -> Select[int]:
    """Attempts whose lease is over, and whose pilot reported last before `silent_since`."""
    return _limit_rows(
        select(table.c.job_id).where(
            _OPEN,
            *conditions,
            table.c.lease_expires_at < bindparam("now"),
            reported < _SILENT_SINCE,
        )
    )


EXPIRED = _select_overdue(table.c.opened_at, table.c.started_at.is_(None), table.c.ending.is_(False))
ENDED_IN_SILENCE = _select_overdue(
    func.coalesce(table.c.heartbeat_at, table.c.opened_at), table.c.ending.is_(True)
)
_NOW, _LATEST = (bindparam(name, type_=table.c.opened_at.type) for name in ("now", "latest"))
_IS_AHEAD = or_(table.c.opened_at > _LATEST, table.c.heartbeat_at > _LATEST)
_STATUS = select(jobs_table.c.status).where(jobs_table.c.job_id == table.c.job_id).scalar_subquery()
#: Reads all open attempts, by job: the one statement that does. The bound of all VOs leaves nearly none of
#: which the job is looked up; not by a join, which would read all jobs that run.
OVERDUE = _limit_rows(
    select(table.c.job_id, _IS_AHEAD.label("is_ahead")).where(
        _OPEN,
        table.c.job_id > bindparam("after"),
        or_(
            and_(
                table.c.heartbeat_at < bindparam("newest", type_=table.c.heartbeat_at.type),
                table.c.heartbeat_at < _SILENT_SINCE,
                _STATUS.in_([JobStatus.RUNNING.value, JobStatus.COMPLETING.value]),
            ),
            _IS_AHEAD,
        ),
    )
)

#: Of the attempt's pilot. A heartbeat after the reported end, or after the start of another process of that
#: pilot, shows that the process with the attempt lives: the report was wrong, or two have one token.
_REPORTED_END = and_(
    pilots.c.status.in_([status.value for status in PILOT_ENDS]), table.c.heartbeat_at <= pilots.c.updated_at
)
_RESTARTED = table.c.heartbeat_at <= pilots.c.restarted_at
_PILOT_HAS_ENDED = and_(pilots.c.stamp == table.c.stamp, or_(_REPORTED_END, _RESTARTED))
_HAS_ENDED = (
    select(pilots.c.stamp)
    .where(
        pilots.c.stamp == table.c.stamp,
        or_(
            and_(_REPORTED_END, pilots.c.updated_at < _ENDED_SINCE),
            and_(_RESTARTED, pilots.c.restarted_at < _ENDED_SINCE),
        ),
    )
    .exists()
)
STALLED_LONG = _limit_rows(
    select(
        *(table.c.job_id, table.c.site, table.c.ram_mb, _KEY.label("key")),
        *(jobs_table.c.minor_status, jobs_table.c.application_status),
    )
    .join(jobs_table, jobs_table.c.job_id == table.c.job_id)
    .where(
        _OPEN,
        jobs_table.c.status == JobStatus.STALLED.value,
        or_(
            and_(
                table.c.heartbeat_at < _SILENT_SINCE,
                jobs_table.c.updated_at < _STALLED_SINCE,
            ),
            and_(jobs_table.c.updated_at < _ENDED_SINCE, _HAS_ENDED),
        ),
    )
)

#: Jobs with what is stored of their pilot's end, empty where another process of it began. No SKIP LOCKED: the
#: end of a pilot is reported once.
OF_ENDED_PILOTS = (
    select(table.c.job_id, case((_REPORTED_END, pilots.c.status_reason), else_="").label("reason"))
    .join(pilots, _PILOT_HAS_ENDED)
    .where(_OPEN, table.c.ending.is_(False), sql.is_listed(table.c.stamp))
    .order_by(table.c.job_id)
    .with_for_update(of=table)
)

CORRECT_ATTEMPTS = (
    update(table)
    .where(_OPEN, sql.is_listed(table.c.job_id))
    .values(
        opened_at=case((table.c.opened_at > _NOW, _NOW), else_=table.c.opened_at),
        heartbeat_at=case((table.c.heartbeat_at > _NOW, _NOW), else_=table.c.heartbeat_at),
        lease_expires_at=_NOW,
    )
)
CORRECT_STALLED = (
    update(jobs_table)
    .where(jobs_table.c.status == JobStatus.STALLED.value, jobs_table.c.updated_at > _LATEST)
    .values(updated_at=_NOW)
)
#: Jobs that were put off while the clock was ahead; one that is only held for long was changed before.
CORRECT_DUE = (
    update(jobs_table)
    .where(jobs_table.c.due_at > _LATEST, jobs_table.c.updated_at > _LATEST)
    .values(due_at=_NOW)
)
#: Otherwise no token would come before the time that was stored with the last one.
CORRECT_DELAYS = update(matching_delays).where(matching_delays.c.at > _LATEST).values(at=_NOW)

#: The old state in the WHERE: no effect if the job was claimed, killed or rescheduled meanwhile.
RESUME = (
    update(jobs_table)
    .where(
        jobs_table.c.job_id == bindparam("the_job"),
        jobs_table.c.epoch == bindparam("the_epoch"),
        or_(
            jobs_table.c.status.in_(sorted(RESUMABLE)),
            and_(jobs_table.c.status == JobStatus.FAILED.value, jobs_table.c.minor_status == GIVEN_UP),
        ),
    )
    .values(
        status=JobStatus.RUNNING.value,
        minor_status=RESUMED,
        application_status="",
        site=bindparam("the_site"),
        started_at=bindparam("begun_at"),
        updated_at=bindparam("now"),
        ended_at=None,
        due_at=None,
        step=None,
        # Undo the count of the rescheduling, if there was one.
        reschedules=case(
            (jobs_table.c.status == JobStatus.FAILED.value, jobs_table.c.reschedules),
            (jobs_table.c.reschedules > 0, jobs_table.c.reschedules - 1),
            else_=0,
        ),
    )
)


def make_key(vo: str, times: str = "") -> str:
    """The key of the attempts of a VO, or of those that have these times of their own (`Attempt.times`)."""
    return vo + times


def correct_future_times(conn: Connection, *, now: datetime) -> None:
    """Set times of jobs and delays that are ahead to the present: the clock of the database was set back.

    Jobs that were put off are due then, and matching delays end, instead of after hours. `mark_stalled`
    corrects open attempts. `now` is used on SQLite only: what a process read before it was suspended would
    set back what came meanwhile.
    """
    now = clock.read_time(conn, now)
    times = {"latest": now + clock.MOST_OFFSET, "now": now}
    conn.execute(CORRECT_STALLED, times)
    conn.execute(CORRECT_DUE, times)
    conn.execute(CORRECT_DELAYS, times)


def expire_leases(
    conn: Connection, *, silent_since: Mapping[str, datetime], now: datetime, most: int = 1000
) -> list[int]:
    """Return jobs that were not started within the lease to their task queues, without penalty; their ids.

    Jobs matched after `silent_since` are left alone: the service was not up all the time since then.
    """
    found = _find(conn, EXPIRED, {"silent_since": silent_since, "now": now, "most": most})
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
    unmatchable.mark_stuck(conn, ids, source=SOURCE, now=now)
    return ids


def close_killed(
    conn: Connection, *, silent_since: Mapping[str, datetime], now: datetime, most: int = 1000
) -> list[int]:
    """Close the attempts of killed jobs whose pilots are silent; the ids of the jobs.

    Jobs whose pilots reported after `silent_since` are left alone.
    """
    found = _find(conn, ENDED_IN_SILENCE, {"silent_since": silent_since, "now": now, "most": most})
    attempts.close_attempts(conn, found, closed_as="killed", now=now)
    transitions.log_note(conn, found, minor=KILLED_AND_SILENT, source=SOURCE, now=now)
    return list(found)


@dataclass(slots=True, kw_only=True)
class OpenPass:
    """A pass over all open attempts, some overdue ones at a time: none is read twice."""

    after: int = 0  #: the attempts of jobs up to this id have been read
    found: int = 0  #: attempts that the last step found; fewer than it may: there are no more


def mark_stalled(
    conn: Connection,
    *,
    silent_since: Mapping[str, datetime],
    now: datetime,
    most: int = 1000,
    over: OpenPass | None = None,
) -> list[int]:
    """Mark jobs Stalled whose pilots have been silent since then; their ids.

    What is read for it are all open attempts (`over`: from there on). So those are corrected by the way whose
    times are ahead, for the clock of the database was set back: their silence counts from now on.
    """
    over = OpenPass() if over is None else over
    read_at = clock.read_time(conn, now)
    bounds = {"newest": max(silent_since.values(), default=uptime.NEVER), "silent_since": silent_since}
    values = {**bounds, "latest": read_at + clock.MOST_OFFSET, "after": over.after, "most": most}
    rows = conn.execute(OVERDUE, values).all()
    over.found = len(rows)
    over.after = rows[-1].job_id if rows else over.after
    if ahead := [row.job_id for row in rows if row.is_ahead]:
        conn.execute(CORRECT_ATTEMPTS, {"ids": ahead, "now": read_at})
    silent = [row.job_id for row in rows if not row.is_ahead]
    moved = transitions.move_jobs(conn, silent, JobStatus.STALLED, minor=STALLED, source=SOURCE, now=now)
    return _list_ids(moved)


def mark_pilots_ended(conn: Connection, stamps: Collection[str], *, now: datetime) -> list[int]:
    """Mark the jobs Stalled that run at pilots, a thousand at most, whose end or new process was just stored.

    Their application status is the reason of that end. A next heartbeat makes them Running again: what a
    batch system reports may be wrong. Returns their ids.
    """
    if not stamps:
        return []
    found = conn.execute(OF_ENDED_PILOTS, {"ids": sorted(stamps)}).all()
    reasons = {row.job_id: read_public_reason(row.reason)[:_LONGEST_REASON] for row in found}
    moved = transitions.move_jobs(
        conn,
        reasons,
        JobStatus.STALLED,
        minor=PILOT_ENDED,
        application=reasons,
        source=SOURCE,
        now=now,
    )
    return _list_ids(moved)


def give_up_stalled(
    conn: Connection,
    *,
    silent_since: Mapping[str, datetime],
    stalled_since: Mapping[str, datetime],
    ended_since: Mapping[str, datetime],
    max_rescheduling: Mapping[str, int],
    retry: RetryPlan = plan_nothing,
    ruled_vos: Collection[str] = (),
    now: datetime,
    most: int = 1000,
) -> tuple[list[int], list[int]]:
    """End Stalled jobs whose payload cannot run any more: the ids of rescheduled ones, and of failed ones.

    Their pilots are silent since `silent_since`, and they are Stalled since `stalled_since`; or both the
    pilot has ended and the job is Stalled since `ended_since`. A job fails if it has already been rescheduled
    `max_rescheduling` times, without those by rules, which `retry` plans. Its application status is why it
    was Stalled.
    """
    values = {
        "silent_since": silent_since,
        "stalled_since": stalled_since,
        "ended_since": ended_since,
        "most": most,
    }
    found: dict[int, list[int]] = defaultdict(list)
    reasons: dict[int, str] = {}
    rows = conn.execute(STALLED_LONG, values).all()
    retried = _retry(conn, rows, retry, ruled_vos=ruled_vos, now=now)
    for row in rows:
        if row.job_id in retried:
            continue
        found[max_rescheduling[row.key]].append(row.job_id)
        has_reason = row.minor_status == PILOT_ENDED and row.application_status
        reasons[row.job_id] = row.application_status if has_reason else row.minor_status
    again: list[int] = []
    failed: list[int] = []
    for maximum, job_ids in found.items():
        back = _list_ids(
            transitions.move_jobs(
                conn,
                job_ids,
                JobStatus.RESCHEDULED,
                minor=control.RESCHEDULED,
                application=reasons,
                source=SOURCE,
                now=now,
                reschedules_below=maximum,
            )
        )
        again += back
        failed += sorted(set(job_ids) - set(back))
    failed = _list_ids(
        transitions.move_jobs(
            conn,
            failed,
            JobStatus.FAILED,
            minor=GIVEN_UP,
            application=reasons,
            source=SOURCE,
            now=now,
            from_states=frozenset({JobStatus.STALLED}),
        )
    )
    attempts.close_attempts(conn, [*again, *failed], closed_as=attempts.LOST, now=now)
    return [*retried, *again], failed


def _retry(
    conn: Connection, rows: Sequence[Row[Any]], plan: RetryPlan, *, ruled_vos: Collection[str], now: datetime
) -> list[int]:
    """Reschedule those of the lost jobs that a rule names; their ids. No pilot resumes them."""
    lost = [
        FailedAttempt(job_id=row.job_id, site=row.site, ram_mb=row.ram_mb, ending=Ending(reason=PILOT_LOST))
        for row in rows
    ]
    decided = retries.decide_retries(conn, lost, plan, ruled_vos=ruled_vos)
    planned = {job_id: each for job_id, each in decided.items() if isinstance(each, Retry)}
    moved = transitions.move_jobs(
        conn,
        planned,
        JobStatus.RESCHEDULED,
        minor=retries.RETRIED,
        application={job_id: each.note for job_id, each in planned.items()},
        source=SOURCE,
        now=now,
        from_states=frozenset({JobStatus.STALLED}),
        counts=False,
    )
    retried = _list_ids(moved)
    attempts.close_attempts(conn, retried, closed_as=retries.CLOSED_AS, now=now)
    retries.apply_retries(conn, {job_id: planned[job_id] for job_id in retried}, now=now)
    return retried


def _find(conn: Connection, statement: Select[int], values: Mapping[str, object]) -> Sequence[int]:
    return conn.execute(statement, values).scalars().all()


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
