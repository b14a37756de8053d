"""The jobs that the optimizers still have to look at: which are due, and what became of them, in bulk.

Every change names the state that the job was read in; whoever comes second changes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, literal, select, update

from taskqueue import log
from taskqueue.states import PREPARING, JobStatus
from taskqueue.tables import blobs, descriptions, jobs

#: `Submitting` is not confirmed by its submitter yet.
_OURS = sorted(PREPARING - {JobStatus.SUBMITTING})

_IS_OURS = and_(jobs.c.status.in_(_OURS), jobs.c.due_at <= bindparam("now"))
_HAS_BLOB = and_(blobs.c.digest == descriptions.c.sandbox, blobs.c.vo == jobs.c.vo)
_STATE = (jobs.c.job_id, jobs.c.status, jobs.c.due_at, jobs.c.reschedules)

DUE = select(jobs.c.job_id).where(_IS_OURS).order_by(jobs.c.due_at).limit(bindparam("most"))

READ = (
    select(
        *_STATE,
        *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.priority, jobs.c.step, jobs.c.epoch),
        *(jobs.c.parameters, descriptions.c.body, descriptions.c.sandbox),
        (descriptions.c.sandbox.is_not(None) & blobs.c.digest.is_(None)).label("sandbox_gone"),
    )
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .outerjoin(blobs, _HAS_BLOB)
    .where(jobs.c.job_id.in_(bindparam("job_ids", expanding=True)), _IS_OURS)
    .order_by(jobs.c.job_id)
)

#: A rival that holds a row looks after it; waiting for it would only lead to nothing.
LOCK = (
    select(*_STATE)
    .where(jobs.c.job_id.in_(bindparam("job_ids", expanding=True)), _IS_OURS)
    .order_by(jobs.c.job_id)
    .with_for_update(skip_locked=True)
)

SETTLE = (
    update(jobs)
    .where(jobs.c.job_id == bindparam("the_job"), jobs.c.status == bindparam("from_status"))
    .values(
        status=bindparam("to_status"),
        minor_status=bindparam("minor"),
        application_status=bindparam("application"),
        step=bindparam("step"),
        due_at=bindparam("due_at"),
        updated_at=bindparam("at"),
        ended_at=bindparam("ended_at"),
    )
)

PLACE = (
    update(jobs)
    .where(jobs.c.job_id == bindparam("the_job"), jobs.c.status == literal(JobStatus.WAITING.value))
    .values(submit_pool=bindparam("submit_pool"), site=bindparam("site"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingJob:
    """A job as the optimizers found it."""

    job_id: int
    vo: str
    owner: str
    owner_group: str
    priority: float
    status: JobStatus
    step: str | None  #: the one that held it
    due_at: datetime
    reschedules: int
    epoch: int
    body: str  #: JSON object, the description with its placeholders
    parameters: str | None  #: JSON object, what to put for them
    sandbox: str | None
    sandbox_gone: bool  #: it names a blob that its VO does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of a job; `job` says in which state that was decided."""

    job: PreparingJob
    status: JobStatus
    minor_status: str
    application_status: str = ""
    note: str = ""  #: for the log alone
    source: str  #: the optimizer
    step: str | None = None  #: the one to go on with
    due_at: datetime | None = None  #: when to look again
    submit_pool: str | None = None
    site: str | None = None


def due(conn: Connection, *, now: datetime, most: int) -> list[int]:
    """Ids of jobs that the optimizers should look at now, longest due first."""
    return list(conn.execute(DUE, {"now": now, "most": most}).scalars())


def read(conn: Connection, job_ids: Sequence[int], *, now: datetime) -> list[PreparingJob]:
    """Those of the jobs that are due, without locking them."""
    rows = conn.execute(READ, {"job_ids": list(job_ids), "now": now}).mappings()
    return [
        PreparingJob(**{**row, "status": JobStatus(row["status"]), "sandbox_gone": bool(row["sandbox_gone"])})
        for row in rows
    ]


def lock(conn: Connection, read_jobs: Iterable[PreparingJob], *, now: datetime) -> list[PreparingJob]:
    """Those of the jobs that are still as they were read, locked until the transaction ends."""
    by_id = {job.job_id: job for job in read_jobs}
    rows = conn.execute(LOCK, {"job_ids": list(by_id), "now": now})
    return [by_id[row.job_id] for row in rows if tuple(row) == _state(by_id[row.job_id])]


def _state(job: PreparingJob) -> tuple[object, ...]:
    return job.job_id, job.status.value, job.due_at, job.reschedules


def settle(conn: Connection, settled: Sequence[Settled], *, now: datetime) -> None:
    """Write what became of jobs that `lock` gave, with their log."""
    if not settled:
        return
    conn.execute(SETTLE, [_change(each, now) for each in settled])
    log.append(conn, (_log_entry(each, now) for each in settled))
    placed = [_place(each) for each in settled if each.status is JobStatus.WAITING]
    if placed:
        conn.execute(PLACE, placed)


def _change(settled: Settled, now: datetime) -> dict[str, object]:
    return {
        "the_job": settled.job.job_id,
        "from_status": settled.job.status.value,
        "to_status": settled.status.value,
        "minor": settled.minor_status,
        "application": settled.application_status,
        "step": settled.step,
        "due_at": settled.due_at,
        "at": now,
        "ended_at": now if settled.status is JobStatus.FAILED else None,
    }


def _log_entry(settled: Settled, now: datetime) -> log.LogEntry:
    return log.LogEntry(
        job_id=settled.job.job_id,
        at=now,
        from_status=settled.job.status,
        to_status=settled.status,
        minor_status=settled.minor_status,
        application_status=settled.application_status or settled.note,
        source=settled.source,
        epoch=settled.job.epoch,
    )


def _place(settled: Settled) -> dict[str, object]:
    return {"the_job": settled.job.job_id, "submit_pool": settled.submit_pool, "site": settled.site or "ANY"}
