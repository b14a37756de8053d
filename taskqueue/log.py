"""Every change of a job's status, written in the transaction of the change."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select

from taskqueue.states import JobStatus
from taskqueue.tables import job_log

_COLUMNS = [column for column in job_log.c if column.name != "log_id"]

APPEND = insert(job_log)

OF_JOB = select(*_COLUMNS).where(job_log.c.job_id == bindparam("job_id")).order_by(job_log.c.log_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One change of a job's status."""

    job_id: int
    at: datetime
    from_status: JobStatus | None  #: None: the job was stored
    to_status: JobStatus
    minor_status: str = ""
    application_status: str = ""
    source: str  #: who did it: JobManager, an optimizer, Matcher, Pilot, an agent
    epoch: int = 0  #: the job's latest attempt at that time


def append(conn: Connection, entries: Iterable[LogEntry]) -> None:
    """Write entries, in their order."""
    rows = [_row(entry) for entry in entries]
    if rows:
        conn.execute(APPEND, rows)


def of_job(conn: Connection, job_id: int) -> list[LogEntry]:
    """All that happened to a job, first things first; empty if there is no such job."""
    return [
        LogEntry(
            **{
                **row,
                "from_status": None if row["from_status"] is None else JobStatus(row["from_status"]),
                "to_status": JobStatus(row["to_status"]),
            }
        )
        for row in conn.execute(OF_JOB, {"job_id": job_id}).mappings()
    ]


def _row(entry: LogEntry) -> dict[str, object]:
    return {
        "job_id": entry.job_id,
        "at": entry.at,
        "from_status": None if entry.from_status is None else entry.from_status.value,
        "to_status": entry.to_status.value,
        "minor_status": entry.minor_status,
        "application_status": entry.application_status,
        "source": entry.source,
        "epoch": entry.epoch,
    }
