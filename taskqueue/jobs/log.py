"""Job log: every change of a job's status, written in the transaction of the change; and the feed of the log.

The feed has changes of status in order, each read exactly once, however late it is committed. A growing
number alone is no safe position on PostgreSQL: a transaction that took an early number may commit late. So
the feed is read only up to an end for which all transactions are over that could add rows before it; a long
transaction delays its readers, nothing else. A transaction changes a job before it writes the log, so it has
a transaction id before it takes a log number. The end is read first and a transaction id is taken then: all
those transactions have smaller ids.

On SQLite there is one writer at a time: rows become visible in the order of their numbers.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, RowMapping, and_, bindparam, func, select

from requirements.job_fields import FIELDS
from requirements.states import JobStatus, read_status
from taskqueue.db import database, sql
from taskqueue.schema.tables import installation, job_log, jobs
from taskqueue.task_queues import change_feed

COLUMNS = [column for column in job_log.c if column.name != "log_id"]
_NAMES = [column.name for column in COLUMNS]

#: Entries of one job that are read at once.
MOST = 10_000

APPEND = sql.bulk_insert(job_log, *_NAMES)

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
    sql.is_listed(job_log.c.job_id), job_log.c.source.in_(bindparam("sources", expanding=True))
)
#: Condition: rows of a span, `after` and `upto` which.
is_within = and_(job_log.c.log_id > bindparam("after"), job_log.c.log_id <= bindparam("upto"))
OF_JOBS = select(*COLUMNS).where(sql.is_listed(job_log.c.job_id)).order_by(job_log.c.log_id)


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


def read_log(conn: Connection, job_id: int) -> list[LogEntry]:
    """The newest entries of a job, oldest first; empty if there is no such job."""
    rows = conn.execute(NEWEST_OF_JOB, {"job_id": job_id, "most": MOST}).all()
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


END = select(func.max(job_log.c.log_id))
XID = select(change_feed.OUR_XID)
INCARNATION = select(installation.c.incarnation)
#: Seconds between two looks whether the log is complete.
_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The end of the log at one moment."""

    log_id: int  #: of the last row that was visible
    history: tuple[object, ...]  #: of the database (`change_feed.FeedPosition`)
    before: int  #: ids of all transactions that may still add rows up to there are smaller; SQLite: 0


def read_end(conn: Connection) -> LogEnd:
    """The current end; the transaction must not have changed anything yet."""
    log_id = conn.execute(END).scalar_one() or 0
    before = conn.execute(XID).scalar_one() if conn.dialect.name == "postgresql" else 0
    return LogEnd(log_id=log_id, history=change_feed.read_position(conn).history, before=before)


def is_complete(conn: Connection, end: LogEnd) -> bool:
    """Whether no row will be added any more up to an end that another transaction read."""
    if conn.dialect.name == "sqlite":
        return True
    current = change_feed.read_position(conn)
    return end.history == current.history and current.low >= end.before


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A change of a job's status, with what jobs are filtered by."""

    log_id: int
    from_status: JobStatus | None  #: None: the job was stored
    epoch: int
    fields: Mapping[str, object]  #: of the job by name, with the status that it changed to


_span = (
    select(job_log)
    .where(job_log.c.log_id > bindparam("after"), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
    .limit(bindparam("most"))
    .subquery("span")
)
#: Fields of the job itself, those that a change states as of that change.
_STATED: Final = {
    "job_id": _span.c.job_id,
    "status": _span.c.to_status,
    "minor_status": _span.c.minor_status,
    "application_status": _span.c.application_status,
    "updated_at": _span.c.at,
}
_FIELDS: Final = [field.name for field in FIELDS if field.filters and not field.is_of_attempt]
CHANGES = (
    select(
        *(_span.c.log_id, _span.c.from_status, _span.c.epoch),
        *(_STATED.get(name, jobs.c[name]).label(name) for name in _FIELDS),
    )
    .outerjoin_from(_span, jobs, jobs.c.job_id == _span.c.job_id)
    .order_by(_span.c.log_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """Changes in order."""

    changes: Sequence[JobChange]
    upto: int  #: all log rows up to here were read
    more: bool  #: there are further rows


class LogFeed:
    """The readable part of the log for one process; any number of processes may have one. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pending: LogEnd | None = None
        self._end = 0

    def read_end(self) -> int:
        """Read up to where the log is complete; 0: nothing yet."""
        with self._lock:
            if self._pending is None:
                with database.reading(self._engine) as conn:
                    end = read_end(conn)
                self._pending = end if end.log_id != self._end else None
            if self._pending is not None:
                with database.reading(self._engine) as conn:
                    if is_complete(conn, self._pending):
                        self._end, self._pending = self._pending.log_id, None
                    elif self._pending.history != change_feed.read_position(conn).history:
                        self._pending = None  # of a server that is gone
            return self._end

    def read_present(self, *, seconds: float) -> int | None:
        """Read the end at this moment, once the log is complete up to there; None: not within `seconds`.

        `read_end` may return an earlier end for as long as transactions are under way.
        """
        until = time.monotonic() + seconds
        while True:
            with database.reading(self._engine) as conn:
                end = read_end(conn)
            while True:
                with database.reading(self._engine) as conn:
                    if is_complete(conn, end):
                        return end.log_id
                    is_replaced = end.history != change_feed.read_position(conn).history
                if time.monotonic() >= until:
                    return None
                if is_replaced:  # of a server that is gone
                    break
                threading.Event().wait(_PAUSE)

    def read_page(self, after: int, *, upto: int, most: int) -> ChangePage:
        """Changes behind the log id `after`, of `most` log rows; `upto` as of `read_end`."""
        if after >= upto:
            return ChangePage(changes=(), upto=after, more=False)
        with database.reading(self._engine) as conn:
            rows = conn.execute(CHANGES, {"after": after, "upto": upto, "most": most}).mappings().all()
        # A log in partitions has rows of jobs that were deleted: they count, but are no changes.
        found = [_from_row(row) for row in rows if row["vo"] is not None]
        is_full = len(rows) == most
        return ChangePage(changes=found, upto=rows[-1]["log_id"] if is_full else upto, more=is_full)

    def read_incarnation(self) -> int:
        """Number of the history of this installation: log ids of another one mean nothing."""
        with database.reading(self._engine) as conn:
            number: int = conn.execute(INCARNATION).scalar_one()
        return number


def _from_row(row: RowMapping) -> JobChange:
    before = None if row["from_status"] is None else read_status(row["from_status"])
    fields = {name: row[name] for name in _FIELDS} | {"status": read_status(row["status"])}
    return JobChange(log_id=row["log_id"], from_status=before, epoch=row["epoch"], fields=fields)
