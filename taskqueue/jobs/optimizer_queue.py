"""Queue of the optimizers: due jobs, bulk storage of results, and the crash journal.

Each update states the status in which the job was read; the second of two rivals changes nothing. A journal
entry that outlives its process marks a job that may have crashed it.

Workers behind Redis report their state for pages, metrics and `doctor`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, delete, func, select

from requirements.states import PREPARING, JobStatus, read_status
from taskqueue.db import sql
from taskqueue.jobs import descriptions, log
from taskqueue.schema.tables import blobs, jobs
from taskqueue.schema.tables import trials as table
from taskqueue.task_queues import task_queues, wait_causes

#: `Submitting` is not confirmed by its submitter yet.
_PREPARING = sorted(PREPARING - {JobStatus.SUBMITTING})

_IS_DUE = and_(jobs.c.status.in_(_PREPARING), jobs.c.due_at <= bindparam("now"))
_STATE = (jobs.c.job_id, jobs.c.status, jobs.c.due_at, jobs.c.reschedules)

DUE = select(jobs.c.job_id).where(_IS_DUE).order_by(jobs.c.due_at).limit(bindparam("most"))

_late = select(jobs.c.due_at).where(_IS_DUE).order_by(jobs.c.due_at).limit(bindparam("most")).subquery()
LATE = select(func.count().label("jobs"), func.min(_late.c.due_at).label("since"))

READ = (
    select(
        *_STATE,
        *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.priority, jobs.c.step, jobs.c.epoch),
        *(jobs.c.parameters, jobs.c.description_id, jobs.c.task_queue_id),
    )
    .where(sql.is_listed(jobs.c.job_id), _IS_DUE)
    .order_by(jobs.c.job_id)
)
SANDBOXES = select(blobs.c.digest, blobs.c.vo).where(sql.is_listed(blobs.c.digest))

#: SKIP LOCKED: a locked row is already being processed by another worker.
LOCK = (
    select(*_STATE)
    .where(sql.is_listed(jobs.c.job_id), _IS_DUE)
    .order_by(jobs.c.job_id)
    .with_for_update(skip_locked=True)
)

#: For rows locked by `LOCK` in the same transaction.
SETTLE = sql.bulk_update(
    jobs,
    *("status", "minor_status", "application_status", "step", "due_at", "ended_at", "updated_at"),
    key="job_id",
)
SETTLE_WAITING = sql.bulk_update(
    jobs,
    *("minor_status", "submit_pool", "site", "task_queue_id", "priority", "job_type"),
    *("status", "application_status", "step", "due_at", "ended_at", "updated_at"),
    key="job_id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingJob:
    """A job as read for the optimizers."""

    job_id: int
    vo: str
    owner: str
    owner_group: str
    priority: float
    status: JobStatus
    step: str | None  #: the optimizer that held it
    due_at: datetime
    reschedules: int
    epoch: int
    body: str  #: JSON object, the description with its placeholders
    parameters: str | None  #: JSON object, values of the placeholders
    sandbox_gone: bool  #: its sandbox is not in the VO's blobs
    task_queue_id: int | None = None  #: that it was in before; None: in none


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """Result of the optimizers for a job, or for all jobs with equal requirements."""

    status: JobStatus
    minor_status: str
    application_status: str = ""
    note: str = ""  #: for the log only
    source: str  #: the optimizer
    step: str | None = None  #: the next optimizer
    due_at: datetime | None = None  #: when it is processed again
    submit_pool: str | None = None
    site: str = "ANY"
    priority: float = 1.0  #: of a job that becomes Waiting
    job_type: str = ""  #: of a job that becomes Waiting

    def entry(self, before: JobStatus, *, epoch: int, now: datetime) -> log.LogEntry:
        """Log entry of the change from the status `before`; its job id is filled in later."""
        return log.LogEntry(
            job_id=0,
            at=now,
            from_status=before,
            to_status=self.status,
            minor_status=self.minor_status,
            application_status=self.application_status or self.note,
            source=self.source,
            epoch=epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedState:
    """State of a job that the optimizers have decided."""

    update: StatusUpdate
    task_queue_id: int | None = None  #: of a job that becomes Waiting; locked


#: A job with its new state; the job has the state in which the result was computed.
SettledJob = tuple[PreparingJob, DecidedState]


def list_due(conn: Connection, *, now: datetime, most: int) -> list[int]:
    """Ids of jobs that are due for the optimizers, longest due first."""
    return list(conn.execute(DUE, {"now": now, "most": most}).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJobs:
    """Jobs that should have been processed."""

    jobs: int
    since: datetime  #: when the first was due


def find_late(conn: Connection, *, before: datetime, most: int) -> LateJobs | None:
    """The jobs that have been due since `before` or longer, of which `most` are counted; None: no job is."""
    row = conn.execute(LATE, {"now": before, "most": most}).one()
    return LateJobs(jobs=row.jobs, since=row.since) if row.jobs else None


def read_due(conn: Connection, job_ids: Sequence[int], *, now: datetime) -> list[PreparingJob]:
    """The jobs that are still due, without locking them."""
    rows = conn.execute(READ, {"ids": job_ids, "now": now}).all()
    written = descriptions.read_shared(conn, {row.description_id for row in rows})
    stored = _read_sandboxes(conn, {sandbox for _, sandbox in written.values() if sandbox})
    found: list[PreparingJob] = []
    for row in rows:
        if row.description_id in written:
            body, sandbox = written[row.description_id]
            is_gone = sandbox is not None and (sandbox, row.vo) not in stored
            values = {
                **row._asdict(),
                "status": read_status(row.status),
                "body": body,
                "sandbox_gone": is_gone,
            }
            del values["description_id"]
            found.append(PreparingJob(**values))
    return found


def _read_sandboxes(conn: Connection, digests: Collection[str]) -> frozenset[tuple[str, str]]:
    """Digest and VO of the blobs that are stored."""
    rows = conn.execute(SANDBOXES, {"ids": sorted(digests)}) if digests else ()
    return frozenset((row.digest, row.vo) for row in rows)


def lock_due(conn: Connection, read_jobs: Iterable[PreparingJob], *, now: datetime) -> list[PreparingJob]:
    """Lock the jobs that are unchanged since they were read, until the transaction ends."""
    by_id = {job.job_id: job for job in read_jobs}
    rows = conn.execute(LOCK, {"ids": list(by_id), "now": now})
    locked = [(tuple(row), by_id[row.job_id]) for row in rows]
    return [
        job for state, job in locked if state == (job.job_id, job.status.value, job.due_at, job.reschedules)
    ]


def store_updates(conn: Connection, settled: Sequence[SettledJob], *, now: datetime) -> None:
    """Store the results of jobs locked by `lock_due` in the same transaction, with their log."""
    waiting = [each for each in settled if each[1].update.status is JobStatus.WAITING]
    others = [each for each in settled if each[1].update.status is not JobStatus.WAITING]
    if waiting:
        columns = _build_columns(waiting, ("minor_status", "submit_pool", "site", "priority", "job_type"))
        columns["task_queue_id"] = [state.task_queue_id for _, state in waiting]
        left = {
            job.job_id: job.task_queue_id
            for job, state in waiting
            if job.task_queue_id not in (None, state.task_queue_id)
        }
        wait_causes.leave_task_queues(conn, left, now=now)
        nothing = {"application_status": "", "step": None, "due_at": None, "ended_at": None}
        SETTLE_WAITING.execute(conn, columns, status=JobStatus.WAITING.value, updated_at=now, **nothing)
        added = zip(columns["job_id"], columns["task_queue_id"], columns["priority"], strict=True)
        task_queues.add_waiting(conn, list(added))
    if others:
        columns = _build_columns(others, ("status", "minor_status", "application_status", "step", "due_at"))
        columns["ended_at"] = [now if status is JobStatus.FAILED else None for status in columns["status"]]
        SETTLE.execute(conn, columns, updated_at=now)
    log.append_repeated(conn, _group_log_entries(settled, now))


def _build_columns(settled: Sequence[SettledJob], names: Sequence[str]) -> dict[str, list[Any]]:
    """Job ids, and these fields of the results."""
    columns = {name: [getattr(state.update, name) for _, state in settled] for name in names}
    return {"job_id": [job.job_id for job, _ in settled], **columns}


def _group_log_entries(
    settled: Sequence[SettledJob], now: datetime
) -> Iterator[tuple[log.LogEntry, Sequence[int]]]:
    """Group the jobs with equal log entries."""
    groups: defaultdict[tuple[int, JobStatus, int], list[SettledJob]] = defaultdict(list)
    for job, state in settled:
        groups[id(state.update), job.status, job.epoch].append((job, state))
    for alike in groups.values():
        job, state = alike[0]
        yield state.update.entry(job.status, epoch=job.epoch, now=now), [each.job_id for each, _ in alike]


_NEW = sql.insert(table)
# An entry of the same holder was left by an error that the process survived: no crash.
_ONE_MORE = case((table.c.holder == _NEW.excluded.holder, 0), else_=1)
BEGIN_TRIAL = _NEW.on_conflict_do_update(
    index_elements=["job_id"],
    set_={"crashes": table.c.crashes + _ONE_MORE, "holder": _NEW.excluded.holder},
)

END_TRIAL = delete(table).where(sql.is_listed(table.c.job_id), table.c.holder == bindparam("the_holder"))
CRASHES = select(
    table.c.job_id,
    (table.c.crashes + case((table.c.holder == bindparam("the_holder"), 0), else_=1)).label("crashes"),
).where(sql.is_listed(table.c.job_id))


def count_crashes(conn: Connection, job_ids: Sequence[int], *, holder: str) -> Mapping[int, int]:
    """Number of processes that ended while they worked on each job; jobs without any are left out.

    `holder` is the calling process; its own entries do not count.
    """
    rows = conn.execute(CRASHES, {"ids": list(job_ids), "the_holder": holder})
    return {row.job_id: row.crashes for row in rows if row.crashes}


def begin_trial(conn: Connection, job_ids: Sequence[int], *, holder: str) -> None:
    """Record that a process works on these jobs; to be committed before it begins."""
    conn.execute(
        BEGIN_TRIAL,
        [{"job_id": each, "holder": holder, "crashes": 0} for each in sorted(job_ids)],
    )


def end_trial(conn: Connection, job_ids: Sequence[int], *, holder: str) -> None:
    """Delete the record of jobs that the process has completed."""
    conn.execute(END_TRIAL, {"ids": list(job_ids), "the_holder": holder})


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerQueueState:
    """State of the RQ queues; all numbers are zero if there is a `problem`."""

    problem: str | None = None  #: why Redis does not answer
    waiting: int = 0  #: batches of jobs that no worker has begun
    running: int = 0  #: batches
    failed: int = 0  #: batches of the last hour; their jobs were left to the sweep
    workers: int = 0  #: processes that listen
    outcomes: Mapping[tuple[str, ...], int] = field(
        default_factory=dict
    )  #: by step and outcome, of all workers

    @property
    def is_heard(self) -> bool:
        """Whether a worker listens."""
        return self.workers > 0
