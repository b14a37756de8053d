"""A stored job, and reading one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from requirements.states import JobStatus, read_status
from taskqueue.errors import JobNotFound
from taskqueue.schema.tables import jobs as table

#: All columns except those for the optimizers only.
COLUMNS = [column for column in table.c if column.name not in {"parameters", "step"}]

GET = select(*COLUMNS).where(table.c.job_id == bindparam("job_id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with its current state."""

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
    due_at: datetime | None  #: when the optimizers may process it; None: not in the chain
    submit_pool: str | None
    task_queue_id: int | None
    site: str  #: current or last one; before that the requested one
    epoch: int  #: number of its latest attempt
    reschedules: int
    submitted_at: datetime
    updated_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


def from_row(row: Mapping[str, object]) -> Job:
    """Convert a row of the table."""
    values: dict[str, object] = {**row, "status": read_status(str(row["status"]))}
    return Job(**values)  # type: ignore[arg-type]  # columns and fields are the same


def get_job(conn: Connection, job_id: int) -> Job:
    """One job; JobNotFound."""
    row = conn.execute(GET, {"job_id": job_id}).mappings().one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return from_row(dict(row))
