"""Jobs as they stand, and reading one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from taskqueue.errors import JobNotFound
from taskqueue.schema.tables import jobs as table
from taskqueue.states import JobStatus

#: All but what only the optimizers look at.
COLUMNS = [column for column in table.c if column.name not in {"parameters", "step"}]

GET = select(*COLUMNS).where(table.c.job_id == bindparam("job_id"))


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


def from_row(row: Mapping[str, object]) -> Job:
    """A row of the table as a value."""
    values: dict[str, object] = {**row, "status": JobStatus(str(row["status"]))}
    return Job(**values)  # type: ignore[arg-type]  # columns and fields are the same


def get_job(conn: Connection, job_id: int) -> Job:
    """One job.

    Raises:
        JobNotFound: There is no such job.
    """
    row = conn.execute(GET, {"job_id": job_id}).mappings().one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return from_row(dict(row))
