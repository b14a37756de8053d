"""Job log: every change of a job's status, written in the transaction of the change."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select

from taskqueue.db import sql
from taskqueue.db.sql import BulkInsert
from taskqueue.schema.tables import job_log
from taskqueue.states import JobStatus, read_status

COLUMNS = [column for column in job_log.c if column.name != "log_id"]
_NAMES = [column.name for column in COLUMNS]

#: Entries of one job that are read at once.
MOST = 10_000

APPEND = BulkInsert(job_log, varying=_NAMES)

OF_JOB = (
    select(*COLUMNS, job_log.c.log_id)
    .where(job_log.c.job_id == bindparam("job_id"), job_log.c.log_id > bindparam("after"))
    .order_by(job_log.c.log_id)
    .limit(bindparam("most"))
)
NEWEST_OF_JOB = (
    select(*COLUMNS)
    .where(job_log.c.job_id == bindparam("job_id"))
    .order_by(job_log.c.log_id.desc())
    .limit(bindparam("most"))
)
NOTES = select(job_log.c.job_id, job_log.c.source, job_log.c.minor_status).where(
    job_log.c.job_id.in_(sql.IDS), job_log.c.source.in_(bindparam("sources", expanding=True))
)
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


def append_new(conn: Connection, notes: Sequence[LogEntry]) -> None:
    """Append those of some hundreds of notes whose job has none yet of this source with this minor status."""
    if not notes:
        return
    values = {
        "ids": sorted({each.job_id for each in notes}),
        "sources": sorted({each.source for each in notes}),
    }
    there = {tuple(row) for row in conn.execute(NOTES, values)}
    by_note = {(each.job_id, each.source, each.minor_status): each for each in notes}
    append(conn, (note for key, note in by_note.items() if key not in there))


def read_log(conn: Connection, job_id: int, *, most: int = MOST) -> list[LogEntry]:
    """The newest entries of a job, oldest first; empty if there is no such job."""
    rows = conn.execute(NEWEST_OF_JOB, {"job_id": job_id, "most": most}).all()
    return [entry_from_row(row) for row in reversed(rows)]


def read_page(conn: Connection, job_id: int, *, after: int, limit: int) -> tuple[list[LogEntry], int | None]:
    """Entries of a job after a log id, oldest first, and the log id of the last of them if there are more."""
    rows = conn.execute(OF_JOB, {"job_id": job_id, "after": after, "most": limit + 1}).all()
    page = rows[:limit]
    return [entry_from_row(row[:-1]) for row in page], page[-1].log_id if len(rows) > limit else None


def read_logs(conn: Connection, job_ids: Collection[int]) -> list[LogEntry]:
    """Entries of some hundreds of jobs, oldest first."""
    rows = conn.execute(OF_JOBS, {"ids": sorted(job_ids)}) if job_ids else ()
    return [entry_from_row(row) for row in rows]


def entry_from_row(row: Sequence[Any]) -> LogEntry:
    """Convert a row of `COLUMNS`."""
    entry = dict(zip(_NAMES, row, strict=True))
    entry["from_status"] = None if entry["from_status"] is None else read_status(entry["from_status"])
    entry["to_status"] = read_status(entry["to_status"])
    return LogEntry(**entry)
