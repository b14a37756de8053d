"""A stored job, and reading one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, bindparam, select

from requirements.states import JobStatus, read_status
from taskqueue.db import sql
from taskqueue.errors import JobNotFound
from taskqueue.schema.tables import attempts
from taskqueue.schema.tables import jobs as table

#: All columns except those for the optimizers only.
COLUMNS = [column for column in table.c if column.name not in {"parameters", "step"}]


def exit_code(of: FromClause) -> ColumnElement[int]:
    """The exit code of the payload of a job's latest attempt, by primary key; NULL: it has not ended."""
    latest = (attempts.c.job_id == of.c.job_id) & (attempts.c.epoch == of.c.epoch)
    return select(attempts.c.exit_code).where(latest).correlate(of).scalar_subquery()


def read_columns(of: FromClause = table) -> list[ColumnElement[Any]]:
    """What makes a `Job`, of a selection with `COLUMNS`."""
    return [*(of.c[column.name] for column in COLUMNS), exit_code(of).label("exit_code")]


GET = select(*read_columns()).where(table.c.job_id == bindparam("job_id"))
READ = select(*read_columns()).where(sql.is_listed(table.c.job_id))


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
    exit_code: int | None  #: of the payload of its latest attempt; None: it has not ended


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


def read_jobs(conn: Connection, job_ids: Collection[int]) -> list[Job]:
    """Those of the jobs that are there."""
    return [from_row(row._asdict()) for row in sql.read_batches(conn, READ, job_ids)]
