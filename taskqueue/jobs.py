"""Jobs: storing them and reading one back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from taskqueue import descriptions, log, row_ids
from taskqueue.bulk import BulkInsert
from taskqueue.descriptions import NewDescription
from taskqueue.errors import JobNotFound
from taskqueue.placeholders import Parameters
from taskqueue.states import JobStatus
from taskqueue.tables import jobs as table

ACCEPTED = "Job accepted"

#: All but what only the optimizers look at.
COLUMNS = [column for column in table.c if column.name not in {"parameters", "step"}]

GET = select(*COLUMNS).where(table.c.job_id == bindparam("job_id"))

#: As given for each job.
_STATED = ("vo", "owner", "owner_group", "job_name", "job_type", "job_group", "priority", "site")
STORE = BulkInsert(
    table,
    varying=("job_id", *_STATED, "description_id", "parameters"),
    common=(
        *("status", "minor_status", "application_status", "epoch", "reschedules"),
        *("due_at", "submitted_at", "updated_at"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it stands."""

    job_id: int
    vo: str
    owner: str
    owner_group: str
    status: JobStatus
    minor_status: str
    application_status: str
    job_name: str
    job_type: str
    job_group: str
    priority: float  #: the user's, 0 … 10
    description_id: int
    due_at: datetime | None  #: when the optimizers may look at it; None: not theirs
    submit_pool: str | None
    task_queue_id: int | None
    site: str  #: where it is or was; before that what it asks
    epoch: int  #: number of its latest attempt
    reschedules: int
    submitted_at: datetime
    updated_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be stored."""

    vo: str  #: lower case
    owner: str
    owner_group: str
    job_name: str = ""
    job_type: str = ""
    job_group: str = ""
    priority: float = 1.0
    parameters: Parameters | None = None  #: for the placeholders of its description
    site: str = "ANY"  #: what it asks


#: A job with the place of its description in a list.
Placed = tuple[int, NewJob]


def from_row(row: Mapping[str, object]) -> Job:
    """A row of the table as a value."""
    values: dict[str, object] = {**row, "status": JobStatus(str(row["status"]))}
    return Job(**values)  # type: ignore[arg-type]  # columns and fields are the same


def get(conn: Connection, job_id: int) -> Job:
    """One job.

    Raises:
        JobNotFound: There is no such job.
    """
    row = conn.execute(GET, {"job_id": job_id}).mappings().one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return from_row(dict(row))


def submit(
    conn: Connection, *, description: NewDescription, jobs: Sequence[NewJob], now: datetime
) -> list[int]:
    """Store jobs that share a description; their ids in the same order."""
    return store(conn, [description], [(0, job) for job in jobs], now=now)


def store(
    conn: Connection, described: Sequence[NewDescription], placed: Sequence[Placed], *, now: datetime
) -> list[int]:
    """Store jobs, Received and due for the optimizers; their ids in the same order.

    Args:
        conn: In a writing transaction.
        described: Descriptions, each with a job.
        placed: The jobs, each with the place of its description.
        now: The time.
    """
    if not placed:
        return []
    description_ids = descriptions.store(conn, described)
    new = [job for _, job in placed]
    job_ids = row_ids.take(conn, table, len(new))
    columns = {
        **{name: [getattr(job, name) for job in new] for name in _STATED},
        "description_id": [description_ids[place] for place, _ in placed],
        "parameters": [None if job.parameters is None else json.dumps(job.parameters) for job in new],
        "job_id": job_ids,
    }
    STORE.execute(conn, columns, **_received(now))
    log.append_alike(conn, [(_stored(job_ids[0], now), job_ids)])
    return list(job_ids)


def _received(now: datetime) -> dict[str, object]:
    return {
        "status": JobStatus.RECEIVED.value,
        "minor_status": ACCEPTED,
        "application_status": "",
        "epoch": 0,
        "reschedules": 0,
        "due_at": now,
        "submitted_at": now,
        "updated_at": now,
    }


def _stored(job_id: int, now: datetime) -> log.LogEntry:
    return log.LogEntry(
        job_id=job_id,
        at=now,
        from_status=None,
        to_status=JobStatus.RECEIVED,
        minor_status=ACCEPTED,
        source="JobManager",
    )
