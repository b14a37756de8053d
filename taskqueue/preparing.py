"""The jobs that the optimizers still have to look at: which are due, and what became of them, in bulk.

Every change names the state that the job was read in; whoever comes second changes nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, select

from taskqueue import log
from taskqueue.bulk import BulkUpdate, Columns
from taskqueue.id_lists import OfIds
from taskqueue.states import PREPARING, JobStatus
from taskqueue.tables import blobs, descriptions, jobs

#: `Submitting` is not confirmed by its submitter yet.
_OURS = sorted(PREPARING - {JobStatus.SUBMITTING})

_IS_OURS = and_(jobs.c.status.in_(_OURS), jobs.c.due_at <= bindparam("now"))
_STATE = (jobs.c.job_id, jobs.c.status, jobs.c.due_at, jobs.c.reschedules)

DUE = select(jobs.c.job_id).where(_IS_OURS).order_by(jobs.c.due_at).limit(bindparam("most"))

READ = OfIds(
    jobs.c.job_id,
    lambda ours: (
        select(
            *_STATE,
            *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.priority, jobs.c.step, jobs.c.epoch),
            *(jobs.c.parameters, jobs.c.description_id),
        )
        .where(ours, _IS_OURS)
        .order_by(jobs.c.job_id)
    ),
)
#: Read once for all jobs that share one.
DESCRIPTIONS = OfIds(
    descriptions.c.description_id,
    lambda ours: select(descriptions.c.description_id, descriptions.c.body, descriptions.c.sandbox).where(
        ours
    ),
)
SANDBOXES = select(blobs.c.digest, blobs.c.vo).where(blobs.c.digest.in_(bindparam("digests", expanding=True)))

#: A rival that holds a row looks after it; waiting for it would only lead to nothing.
LOCK = OfIds(
    jobs.c.job_id,
    lambda ours: (
        select(*_STATE).where(ours, _IS_OURS).order_by(jobs.c.job_id).with_for_update(skip_locked=True)
    ),
)

#: Of rows that `LOCK` gave in the same transaction.
SETTLE = BulkUpdate(
    jobs,
    key="job_id",
    varying=("status", "minor_status", "application_status", "step", "due_at", "ended_at"),
    common=("updated_at",),
)
SETTLE_WAITING = BulkUpdate(
    jobs,
    key="job_id",
    varying=("minor_status", "submit_pool", "site", "task_queue_id"),
    common=("status", "application_status", "step", "due_at", "ended_at", "updated_at"),
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
    sandbox_gone: bool  #: it names a blob that its VO does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a job, or of all that ask the same."""

    status: JobStatus
    minor_status: str
    application_status: str = ""
    note: str = ""  #: for the log alone
    source: str  #: the optimizer
    step: str | None = None  #: the one to go on with
    due_at: datetime | None = None  #: when to look again
    submit_pool: str | None = None
    site: str = "ANY"

    def entry(self, before: JobStatus, *, epoch: int, now: datetime) -> log.LogEntry:
        """What the log says of a job that was in the state before; whose it is does not matter here."""
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


#: A job with what became of it; the job says in which state that was decided.
Settled = tuple[PreparingJob, Verdict]


def due(conn: Connection, *, now: datetime, most: int) -> list[int]:
    """Ids of jobs that the optimizers should look at now, longest due first."""
    return list(conn.execute(DUE, {"now": now, "most": most}).scalars())


def read(conn: Connection, job_ids: Sequence[int], *, now: datetime) -> list[PreparingJob]:
    """Those of the jobs that are due, without locking them."""
    rows = conn.execute(READ.of(conn), {"ids": job_ids, "now": now}).all()
    written = _descriptions(conn, {row.description_id for row in rows})
    stored = _sandboxes(conn, {sandbox for _, sandbox in written.values() if sandbox})
    return [_job(row, *written[row.description_id], stored) for row in rows if row.description_id in written]


def _descriptions(conn: Connection, ids: Collection[int]) -> Mapping[int, tuple[str, str | None]]:
    """Body and sandbox of descriptions by id."""
    rows = conn.execute(DESCRIPTIONS.of(conn), {"ids": sorted(ids)}) if ids else ()
    return {row.description_id: (row.body, row.sandbox) for row in rows}


def _sandboxes(conn: Connection, digests: Collection[str]) -> frozenset[tuple[str, str]]:
    """Digest and VO of those of the blobs that are stored."""
    rows = conn.execute(SANDBOXES, {"digests": sorted(digests)}) if digests else ()
    return frozenset((row.digest, row.vo) for row in rows)


def _job(
    row: Row[*tuple[Any, ...]], body: str, sandbox: str | None, stored: Collection[tuple[str, str]]
) -> PreparingJob:
    return PreparingJob(
        job_id=row.job_id,
        vo=row.vo,
        owner=row.owner,
        owner_group=row.owner_group,
        priority=row.priority,
        status=JobStatus(row.status),
        step=row.step,
        due_at=row.due_at,
        reschedules=row.reschedules,
        epoch=row.epoch,
        body=body,
        parameters=row.parameters,
        sandbox_gone=sandbox is not None and (sandbox, row.vo) not in stored,
    )


def lock(conn: Connection, read_jobs: Iterable[PreparingJob], *, now: datetime) -> list[PreparingJob]:
    """Those of the jobs that are still as they were read, locked until the transaction ends."""
    by_id = {job.job_id: job for job in read_jobs}
    rows = conn.execute(LOCK.of(conn), {"ids": list(by_id), "now": now})
    return [by_id[row.job_id] for row in rows if tuple(row) == _state(by_id[row.job_id])]


def _state(job: PreparingJob) -> tuple[object, ...]:
    return job.job_id, job.status.value, job.due_at, job.reschedules


def settle(
    conn: Connection, settled: Sequence[Settled], *, task_queues: Mapping[int, int], now: datetime
) -> None:
    """Write what became of jobs that `lock` gave, with their log.

    Args:
        conn: In the transaction of `lock`.
        settled: The jobs, each once.
        task_queues: Where each of those waits that are Waiting now, by job id.
        now: The time.
    """
    waiting = [(job, verdict) for job, verdict in settled if verdict.status is JobStatus.WAITING]
    others = [(job, verdict) for job, verdict in settled if verdict.status is not JobStatus.WAITING]
    if waiting:
        _settle_waiting(conn, waiting, task_queues, now)
    if others:
        _settle_others(conn, others, now)
    log.append_alike(conn, _logged(settled, now))


def _settle_waiting(
    conn: Connection, settled: Sequence[Settled], task_queues: Mapping[int, int], now: datetime
) -> None:
    columns: Columns = {
        "job_id": [job.job_id for job, _ in settled],
        "minor_status": [verdict.minor_status for _, verdict in settled],
        "submit_pool": [verdict.submit_pool for _, verdict in settled],
        "site": [verdict.site for _, verdict in settled],
        "task_queue_id": [task_queues[job.job_id] for job, _ in settled],
    }
    nothing = {"application_status": "", "step": None, "due_at": None, "ended_at": None}
    SETTLE_WAITING.execute(conn, columns, status=JobStatus.WAITING.value, updated_at=now, **nothing)


def _settle_others(conn: Connection, settled: Sequence[Settled], now: datetime) -> None:
    columns: Columns = {
        "job_id": [job.job_id for job, _ in settled],
        "status": [verdict.status.value for _, verdict in settled],
        "minor_status": [verdict.minor_status for _, verdict in settled],
        "application_status": [verdict.application_status for _, verdict in settled],
        "step": [verdict.step for _, verdict in settled],
        "due_at": [verdict.due_at for _, verdict in settled],
        "ended_at": [now if verdict.status is JobStatus.FAILED else None for _, verdict in settled],
    }
    SETTLE.execute(conn, columns, updated_at=now)


def _logged(settled: Sequence[Settled], now: datetime) -> Iterator[tuple[log.LogEntry, Sequence[int]]]:
    """The jobs of which the log says the same."""
    alike: defaultdict[tuple[int, JobStatus, int], list[Settled]] = defaultdict(list)
    for job, verdict in settled:
        alike[id(verdict), job.status, job.epoch].append((job, verdict))
    for some in alike.values():
        job, verdict = some[0]
        yield verdict.entry(job.status, epoch=job.epoch, now=now), [each.job_id for each, _ in some]
