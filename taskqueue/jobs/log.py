"""Job log: every change of a job's status, written in the transaction of the change."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select

from taskqueue.db import sql
from taskqueue.db.sql import BulkInsert
from taskqueue.schema.tables import job_log
from taskqueue.states import JobStatus

COLUMNS = [column for column in job_log.c if column.name != "log_id"]
_NAMES = [column.name for column in COLUMNS]

APPEND = BulkInsert(job_log, varying=_NAMES)

OF_JOB = select(*COLUMNS).where(job_log.c.job_id == bindparam("job_id")).order_by(job_log.c.log_id)
OF_JOBS = select(*COLUMNS).where(job_log.c.job_id.in_(sql.IDS)).order_by(job_log.c.log_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One change of a job's status."""

    job_id: int
    at: datetime
    from_status: JobStatus | None  #: None: the job was stored
    to_status: JobStatus
    minor_status: str = ""
    application_status: str = ""
    source: str  #: component: JobManager, an optimizer, Matcher, Pilot, an agent
    epoch: int = 0  #: the job's latest attempt at that time


def append(conn: Connection, entries: Iterable[LogEntry]) -> None:
    """Append entries, in their order."""
    append_repeated(conn, ((entry, [entry.job_id]) for entry in entries))


def append_repeated(conn: Connection, groups: Iterable[tuple[LogEntry, Sequence[int]]]) -> None:
    """Append each entry once for each of the job ids paired with it, in place of its own."""
    columns: dict[str, list[object]] = {name: [] for name in _NAMES}
    for entry, job_ids in groups:
        for name in _NAMES:
            columns[name] += job_ids if name == "job_id" else [getattr(entry, name)] * len(job_ids)
    APPEND.execute(conn, columns)


def read_log(conn: Connection, job_id: int) -> list[LogEntry]:
    """All entries of a job, oldest first; empty if there is no such job."""
    return [entry_from_row(row) for row in conn.execute(OF_JOB, {"job_id": job_id})]


def read_logs(conn: Connection, job_ids: Collection[int]) -> list[LogEntry]:
    """Entries of some hundreds of jobs, oldest first."""
    rows = conn.execute(OF_JOBS, {"ids": sorted(job_ids)}) if job_ids else ()
    return [entry_from_row(row) for row in rows]


def entry_from_row(row: Sequence[Any]) -> LogEntry:
    """Convert a row of `COLUMNS`."""
    entry = dict(zip(_NAMES, row, strict=True))
    entry["from_status"] = None if entry["from_status"] is None else JobStatus(entry["from_status"])
    entry["to_status"] = JobStatus(entry["to_status"])
    return LogEntry(**entry)
