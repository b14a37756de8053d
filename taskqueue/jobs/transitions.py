"""Changes of job status, many at once: the old status is in the WHERE, the log in the same transaction.

Locks are taken in the same order everywhere, to avoid deadlocks: waiting rows, attempts, jobs; within each by
job id.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, or_, select, update

from cs_config.options import bounds
from requirements.states import FINAL, PREPARING, JobStatus, may_come_from, read_status
from taskqueue.db import sql
from taskqueue.jobs import log
from taskqueue.leases.attempts import LOST
from taskqueue.schema.tables import attempts, job_log, jobs, waiting_jobs

NO_LIMIT = 2**31 - 1


_WAITING = (
    select(waiting_jobs.c.job_id).where(sql.is_listed(waiting_jobs.c.job_id)).order_by(waiting_jobs.c.job_id)
)
#: Attempts that are open or may be reopened.
_ATTEMPTS = (
    select(attempts.c.job_id, attempts.c.epoch)
    .where(
        sql.is_listed(attempts.c.job_id), or_(attempts.c.closed_at.is_(None), attempts.c.closed_as == LOST)
    )
    .order_by(attempts.c.job_id, attempts.c.epoch)
)
#: Rows that are locked before their jobs, with the statements that lock them, in this order.
BEFORE_JOBS = {each: each.with_for_update() for each in (_WAITING, _ATTEMPTS)}
LOCK_JOBS = (
    select(
        *(jobs.c[name] for name in ("job_id", "status", "epoch", "reschedules")),
        *(jobs.c[name] for name in ("minor_status", "application_status")),
    )
    .where(sql.is_listed(jobs.c.job_id))
    .order_by(jobs.c.job_id)
    .with_for_update()
)

MOVE = (
    update(jobs)
    .where(
        sql.is_listed(jobs.c.job_id),
        jobs.c.status.in_(bindparam("from_states", expanding=True)),
        jobs.c.reschedules < bindparam("reschedules_below"),
    )
    .values(
        status=bindparam("wanted"),
        minor_status=bindparam("minor"),
        application_status=func.coalesce(bindparam("application"), jobs.c.application_status),
        updated_at=bindparam("now"),
        started_at=func.coalesce(bindparam("started"), jobs.c.started_at),
        ended_at=bindparam("ended"),
        due_at=bindparam("due"),
        step=bindparam("step"),
        reschedules=jobs.c.reschedules + bindparam("again"),
    )
    .returning(jobs.c.job_id)
)
SET_APPLICATION = sql.bulk_update(jobs, "application_status", key="job_id")

#: Nothing changes, and no row is returned, if the values are the same as before.
NOTE = (
    update(jobs)
    .where(
        jobs.c.job_id == bindparam("the_job"),
        or_(
            jobs.c.minor_status != func.coalesce(bindparam("minor"), jobs.c.minor_status),
            jobs.c.application_status != func.coalesce(bindparam("application"), jobs.c.application_status),
        ),
    )
    .values(
        minor_status=func.coalesce(bindparam("minor"), jobs.c.minor_status),
        application_status=func.coalesce(bindparam("application"), jobs.c.application_status),
    )
    .returning(*(jobs.c[name] for name in ("status", "minor_status", "application_status", "epoch")))
)
_logged = (
    select(job_log.c.log_id)
    .where(job_log.c.job_id == bindparam("the_job"))
    .limit(bounds.LOGGED_NOTES)
    .subquery()
)
LOGGED = select(func.count()).select_from(_logged)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedJob:
    """A job whose status was changed."""

    job_id: int
    from_status: JobStatus
    epoch: int


def lock_jobs(conn: Connection, job_ids: Collection[int]) -> None:
    """Lock all rows of the jobs in the common order; on SQLite the transaction is the lock.

    A row that came before its job was locked is not, and who locks it first would wait for the job while we
    wait for the row: then all is unlocked, and locked again.
    """
    if conn.dialect.name != "sqlite":
        while not _lock_once(conn, job_ids):
            pass


def _lock_once(conn: Connection, job_ids: Collection[int]) -> bool:
    with conn.begin_nested() as savepoint:
        locked = {rows: set(sql.read_batches(conn, lock, job_ids)) for rows, lock in BEFORE_JOBS.items()}
        sql.read_batches(conn, LOCK_JOBS, job_ids)
        is_whole = all(
            row in known for rows, known in locked.items() for row in sql.read_batches(conn, rows, job_ids)
        )
        if not is_whole:
            savepoint.rollback()
        return is_whole


def move_jobs(
    conn: Connection,
    job_ids: Collection[int],
    wanted: JobStatus,
    *,
    minor: str,
    source: str,
    now: datetime,
    application: str | Mapping[int, str] | None = None,
    from_states: Collection[JobStatus] | None = None,
    reschedules_below: int = NO_LIMIT,
    counts: bool = True,
    kept_for: str | None = None,
) -> list[MovedJob]:
    """Change the status of the jobs whose current status allows it; the others stay unchanged.

    The caller changes what else belongs to the step: the waiting row, the attempt. Without `from_states` the
    table of steps decides; `application` is the new application status, also by job id, and None keeps it.
    Jobs rescheduled `reschedules_below` times or more are left alone. Without `counts` a rescheduling is not
    counted. `kept_for`: why jobs that become Checking are not due for the optimizers, see `withheld`.
    """
    by_job = application if isinstance(application, Mapping) else {}
    common = None if isinstance(application, Mapping) else application
    allowed = may_come_from(wanted) if from_states is None else from_states
    prepares = wanted in PREPARING and wanted is not JobStatus.SUBMITTING and kept_for is None
    values = {
        "wanted": wanted.value,
        "from_states": sorted(status.value for status in allowed),
        "reschedules_below": reschedules_below,
        "minor": minor,
        "application": common,
        "now": now,
        "started": now if wanted is JobStatus.RUNNING else None,
        "ended": now if wanted in FINAL else None,
        "due": now if prepares else None,
        "step": kept_for,
        "again": int(wanted is JobStatus.RESCHEDULED and counts),
    }
    moved: list[MovedJob] = []
    for ids in sql.split_batches(job_ids):
        before = conn.execute(LOCK_JOBS, {"ids": ids}).all()
        changed = set(conn.execute(MOVE, {**values, "ids": ids}).scalars())
        rows = [row for row in before if row.job_id in changed]
        texts = {job_id: by_job[job_id] for job_id in sorted(changed.intersection(by_job))}
        SET_APPLICATION.execute(conn, {"job_id": [*texts], "application_status": [*texts.values()]})
        entries = (
            _build_entry(
                *(row, wanted),
                minor=minor,
                application=texts.get(row.job_id, common),
                source=source,
                now=now,
            )
            for row in rows
        )
        log.append(conn, entries)
        moved += [
            MovedJob(job_id=row.job_id, from_status=read_status(row.status), epoch=row.epoch) for row in rows
        ]
    return moved


def log_note(
    conn: Connection,
    job_ids: Collection[int],
    *,
    minor: str,
    source: str,
    now: datetime,
    application: Mapping[int, str] | None = None,
) -> None:
    """Add a log entry that changes neither status nor minor status of the jobs.

    `application`: what it has as application status, by job id; None: that of the job.
    """
    texts = application or {}
    for ids in sql.split_batches(job_ids):
        entries = (
            _build_entry(
                *(row, read_status(row.status)),
                minor=minor,
                application=texts.get(row.job_id),
                source=source,
                now=now,
            )
            for row in conn.execute(LOCK_JOBS, {"ids": ids}).all()
        )
        log.append(conn, entries)


def note_progress(
    conn: Connection, job_id: int, *, minor: str | None, application: str | None, source: str, now: datetime
) -> None:
    """Change the minor or application status of a locked job, with a log entry; None: unchanged.

    The status stays, and so does the time of its last change. A job whose log is long gets no more entries.
    """
    changed = {"the_job": job_id, "minor": minor, "application": application}
    row = conn.execute(NOTE, changed).one_or_none()
    if row is None or conn.execute(LOGGED, {"the_job": job_id}).scalar_one() >= bounds.LOGGED_NOTES:
        return
    status = read_status(row.status)
    entry = log.LogEntry(
        job_id=job_id,
        at=now,
        from_status=status,
        to_status=status,
        minor_status=row.minor_status,
        application_status=row.application_status,
        source=source,
        epoch=row.epoch,
    )
    log.append(conn, [entry])


def _build_entry(
    row: Row[*tuple[Any, ...]],
    wanted: JobStatus,
    *,
    minor: str,
    source: str,
    now: datetime,
    application: str | None = None,
) -> log.LogEntry:
    return log.LogEntry(
        job_id=row.job_id,
        at=now,
        from_status=read_status(row.status),
        to_status=wanted,
        minor_status=minor,
        application_status=row.application_status if application is None else application,
        source=source,
        epoch=row.epoch,
    )
