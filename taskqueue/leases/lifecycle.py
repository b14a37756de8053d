"""Lifecycle of a lease: start, heartbeat, finish and release, as reported by the pilot.

Each report is one transaction on the locked attempt. A repeated `start`, `finish` or `release` gets the
first answer again, since that may have been lost. Every other report after the attempt was closed raises
StaleLease and changes nothing; a lease that never existed raises LeaseNotFound.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, case, func, update

from cs_config.versions.tables import UtcTime
from taskqueue.errors import IllegalTransition, StaleLease
from taskqueue.jobs import control, jobs, log, transitions
from taskqueue.leases import attempts, expiry
from taskqueue.leases.attempts import Attempt
from taskqueue.schema.tables import attempts as table
from taskqueue.states import JobStatus
from taskqueue.task_queues import task_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobPhase:
    """How far one phase of a grid job is, over all of its local jobs. Source: SAM-Grid."""

    name: str
    done: int
    of: int
    unit: str = ""  #: what is counted, such as events


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress in one heartbeat; None: unchanged."""

    text: str | None = None  #: shown to users
    output_tail: str | None = None
    phases: Sequence[GridJobPhase] | None = None
    local_jobs: Mapping[str, int] | None = None  #: numbers of a grid job's local jobs, by state

    def values(self) -> Mapping[str, str | None]:
        """Bind values of the statement that stores them."""
        phases = None if self.phases is None else json.dumps([asdict(each) for each in self.phases])
        return {
            "new_progress": self.text,
            "new_tail": self.output_tail,
            "new_phases": phases,
            "new_local_jobs": None if self.local_jobs is None else json.dumps(dict(self.local_jobs)),
        }


NO_PROGRESS = Progress()

SOURCE = "Pilot"
STALE = "Pilot, stale lease"

FINISHED = "finished"
STARTED = "Job Initialization"
RUNNING_AGAIN = "Application"
RELEASED = "Released by the pilot"
KILLED_AND_OVER = "The pilot has ended the killed job"
LAST_RELEASE = "Maximum of reschedulings reached"
_DONE = "Execution Complete"
_FAILED = "Application Finished With Errors"

_HAS_STARTED = func.coalesce(table.c.started_at, bindparam("started", type_=UtcTime)).is_not(None)

TOUCH = (
    update(table)
    .where(table.c.lease == bindparam("the_lease"), table.c.closed_at.is_(None))
    .values(
        heartbeat_at=bindparam("now"),
        started_at=func.coalesce(table.c.started_at, bindparam("started", type_=UtcTime)),
        # Only a start extends the time allowed for starting; heartbeats before it do not.
        lease_expires_at=case(
            (_HAS_STARTED, bindparam("expires", type_=UtcTime)), else_=table.c.lease_expires_at
        ),
        progress=func.coalesce(bindparam("new_progress"), table.c.progress),
        output_tail=func.coalesce(bindparam("new_tail"), table.c.output_tail),
        phases=func.coalesce(bindparam("new_phases"), table.c.phases),
        local_jobs=func.coalesce(bindparam("new_local_jobs"), table.c.local_jobs),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadResult:
    """How a payload ended."""

    status: Literal["Done", "Failed"]
    exit_code: int | None = None
    minor_status: str = ""
    application_status: str = ""
    cpu_seconds: float | None = None  #: used by the payload; None: not reported
    cpu_power: float | None = None  #: normalised seconds in one CPU second; None: not known

    @property
    def stored_minor_status(self) -> str:
        """Minor status of the job: the reported one or a default."""
        return self.minor_status or (_DONE if self.status == "Done" else _FAILED)

    def to_json(self) -> str:
        """Canonical text of the report, compared with a repeated one."""
        return _to_json(
            {"finish": {name: value for name, value in asdict(self).items() if _is_stored(name, value)}}
        )


def start(conn: Connection, lease: str, *, lease_time: timedelta, now: datetime) -> dict[str, Any]:
    """Mark the job Running."""
    attempt = _lock_open(conn, lease, now)
    _touch(conn, attempt, now, lease_time, started=now)
    if attempt.started_at is None and not attempt.ending:
        _move(conn, attempt, JobStatus.RUNNING, minor=STARTED, now=now)
    return {"job_id": attempt.job_id, "epoch": attempt.epoch, "commands": _list_commands(attempt)}


def heartbeat(
    conn: Connection, lease: str, *, said: Progress = NO_PROGRESS, lease_time: timedelta, now: datetime
) -> dict[str, Any]:
    """Extend the lease; a Stalled job becomes Running again."""
    attempt = _lock_open(conn, lease, now)
    _restore_start(conn, attempt, now, lease_time)
    _touch(conn, attempt, now, lease_time, progress=said)
    _revive(conn, attempt, now)
    return {"commands": _list_commands(attempt)}


def finish(conn: Connection, lease: str, report: PayloadResult, *, now: datetime) -> dict[str, Any]:
    """Record the end of the payload of a started job. A job that was killed meanwhile stays Killed."""
    attempt = _lock(conn, lease, now)
    request = report.to_json()
    if (given := _read_previous_answer(attempt, request)) is not None:
        return given
    attempts.check_open(attempt)
    _restore_start(conn, attempt, now)
    wanted = JobStatus(report.status)
    if not attempt.ending:
        _revive(conn, attempt, now)
        minor = report.stored_minor_status
        _move(conn, attempt, wanted, minor=minor, application=report.application_status, now=now)
    answer = {
        "job_id": attempt.job_id,
        "epoch": attempt.epoch,
        "status": JobStatus.KILLED if attempt.ending else wanted,
    }
    return _close(conn, attempt, FINISHED, request, answer, now, report.exit_code)


def prepare_output(conn: Connection, lease: str, *, now: datetime) -> None:
    """Lock the open attempt of an output archive, so that no other transaction closes it meanwhile."""
    _lock_open(conn, lease, now)


def store_output(conn: Connection, lease: str, digest: str, *, now: datetime) -> None:
    """Set the output archive of an open attempt; also of a job that was killed while running."""
    attempt = _lock_open(conn, lease, now)
    attempts.store_output(conn, attempt.lease, digest)


def release(
    conn: Connection, lease: str, *, reason: str, max_rescheduling: int, now: datetime
) -> dict[str, Any]:
    """Return the job: not started, it goes back to its task queue; otherwise it is rescheduled."""
    attempt = attempts.lock_attempt(conn, lease)
    request = _to_json({"release": reason})
    if (given := _read_previous_answer(attempt, request)) is not None:
        return given
    attempts.check_open(attempt)
    if not attempt.ending:
        _return_job(conn, attempt, reason, max_rescheduling, now)
    answer = {
        "job_id": attempt.job_id,
        "epoch": attempt.epoch,
        "status": jobs.get_job(conn, attempt.job_id).status,
    }
    return _close(conn, attempt, "released", request, answer, now, None)


def recall(conn: Connection, lease: str, *, reason: str, now: datetime) -> bool:
    """Return a job whose pilot never learned of it; False: it was started, or the attempt is closed."""
    attempt = attempts.lock_attempt(conn, lease)
    if attempt.closed_at is not None or attempt.started_at is not None:
        return False
    release(conn, lease, reason=reason, max_rescheduling=0, now=now)
    return True


def record_stale(conn: Connection, lease: str, what: str, *, now: datetime) -> None:
    """Add a refused report for a closed attempt to the job's log; nothing else changes."""
    attempt = attempts.get_attempt(conn, lease)
    job = jobs.get_job(conn, attempt.job_id)
    entry = log.LogEntry(
        job_id=attempt.job_id,
        at=now,
        from_status=job.status,
        to_status=job.status,
        minor_status=f"refused: {what} of attempt {attempt.epoch}, closed as {attempt.closed_as}",
        application_status="",
        source=STALE,
        epoch=attempt.epoch,
    )
    log.append(conn, [entry])


def _lock(conn: Connection, lease: str, now: datetime) -> Attempt:
    """Lock the attempt; a lost one is reopened if its job is still free."""
    # Read before locking: reopening locks the job's rows first.
    seen = attempts.get_attempt(conn, lease)
    if seen.closed_as == attempts.LOST:
        expiry.resume(conn, seen, now=now)
    attempt = attempts.lock_attempt(conn, lease)
    if (
        attempt.closed_as == attempts.LOST
        and seen.closed_at is None
        and expiry.resume(conn, attempt, now=now)
    ):
        return attempts.lock_attempt(conn, lease)
    return attempt


def _lock_open(conn: Connection, lease: str, now: datetime) -> Attempt:
    attempt = _lock(conn, lease, now)
    attempts.check_open(attempt)
    return attempt


def _return_job(
    conn: Connection, attempt: Attempt, reason: str, max_rescheduling: int, now: datetime
) -> None:
    application = reason or RELEASED
    if attempt.started_at is None:
        _move(conn, attempt, JobStatus.WAITING, minor=RELEASED, application=application, now=now)
        task_queues.requeue(conn, [attempt.job_id], now=now)
        return
    _revive(conn, attempt, now)
    taken_back = transitions.move_jobs(
        conn,
        [attempt.job_id],
        JobStatus.RESCHEDULED,
        minor=control.RESCHEDULED,
        application=application,
        source=SOURCE,
        now=now,
        reschedules_below=max_rescheduling,
    )
    if not taken_back:
        _move(conn, attempt, JobStatus.FAILED, minor=LAST_RELEASE, application=application, now=now)


def _restore_start(
    conn: Connection, attempt: Attempt, now: datetime, lease_time: timedelta = timedelta()
) -> None:
    """Mark an attempt started whose start was among lost commits."""
    if attempt.quarantined and attempt.started_at is None:
        _touch(conn, attempt, now, lease_time, started=now)
        if not attempt.ending:
            _move(conn, attempt, JobStatus.RUNNING, minor=RUNNING_AGAIN, now=now)


def _revive(conn: Connection, attempt: Attempt, now: datetime) -> None:
    if not attempt.ending:
        transitions.move_jobs(
            conn,
            [attempt.job_id],
            JobStatus.RUNNING,
            minor=RUNNING_AGAIN,
            source=SOURCE,
            now=now,
            from_states=frozenset({JobStatus.STALLED}),
        )


def _move(
    conn: Connection,
    attempt: Attempt,
    wanted: JobStatus,
    *,
    minor: str,
    now: datetime,
    application: str | None = None,
) -> None:
    moved = transitions.move_jobs(
        conn, [attempt.job_id], wanted, minor=minor, application=application, source=SOURCE, now=now
    )
    if not moved:
        raise IllegalTransition(
            attempt.job_id, current=jobs.get_job(conn, attempt.job_id).status, wanted=wanted
        )


def _touch(
    conn: Connection,
    attempt: Attempt,
    now: datetime,
    lease_time: timedelta,
    *,
    started: datetime | None = None,
    progress: Progress = NO_PROGRESS,
) -> None:
    values = {
        "the_lease": attempt.lease,
        "now": now,
        "started": started,
        "expires": now + lease_time,
        **progress.values(),
    }
    conn.execute(TOUCH, values)


def _read_previous_answer(attempt: Attempt, request: str) -> dict[str, Any] | None:
    """The stored answer, if this request is the one that closed the attempt."""
    if attempt.closed_at is None or attempt.request is None or attempt.answer is None:
        return None
    if attempt.request != request:
        raise StaleLease(
            f"attempt {attempt.epoch} of job {attempt.job_id} was already {attempt.closed_as} "
            "by a different report"
        )
    answer: dict[str, Any] = json.loads(attempt.answer)
    return answer


def _close(
    conn: Connection,
    attempt: Attempt,
    closed_as: str,
    request: str,
    answer: dict[str, Any],
    now: datetime,
    exit_code: int | None,
) -> dict[str, Any]:
    if attempt.ending:
        transitions.log_note(conn, [attempt.job_id], minor=KILLED_AND_OVER, source=SOURCE, now=now)
    attempts.close_by_pilot(
        conn,
        attempt.lease,
        closed_as=closed_as,
        request=request,
        answer=_to_json(answer),
        exit_code=exit_code,
        now=now,
    )
    return answer


def _list_commands(attempt: Attempt) -> list[str]:
    return ["kill"] if attempt.ending else []


def _is_stored(name: str, value: object) -> bool:
    """Leave out absent CPU figures, so that the text equals that of a report without these fields."""
    return value is not None or name not in {"cpu_seconds", "cpu_power"}


def _to_json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True)
