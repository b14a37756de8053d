"""Wait times of jobs by cause, booked in the hour in which the job ended.

Each wait belongs to the end that followed it: for a job that failed and was rescheduled, the second end
gets only the waits since the first one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Row, bindparam, select
from sqlalchemy.sql.dml import Insert

from taskqueue.accounting import usage
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.accounting.usage import AccountingKey, truncate_to_hour
from taskqueue.db.sql import DialectInsert, Upsert
from taskqueue.jobs import wait_times
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.wait_times import WaitCause
from taskqueue.schema.tables import accounted_waits as table
from taskqueue.schema.tables import job_log, jobs
from taskqueue.states import FINAL, JobStatus

READER_NAME: Final = "waits"

_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)
ENDS = usage.select_log_rows(job_log.c.log_id, job_log.c.job_id, jobs.c.task_queue_id).where(usage.is_end)
#: All log rows of these jobs up to the end of the span.
LOG_BEFORE = (
    select(job_log)
    .where(job_log.c.job_id.in_(_IDS), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
)


def _add(insert: DialectInsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=[*usage.KEY_NAMES, "cause"],
        set_={"seconds": table.c.seconds + insert.excluded.seconds},
    )


ADD = Upsert(table, _add)

_End = Row[*tuple[Any, ...]]


def count_waits(conn: Connection, span: LogSpan) -> None:
    """Add up the wait times of the jobs that ended in a span of the log."""
    ends = conn.execute(ENDS, span.bounds).all()
    found: defaultdict[tuple[AccountingKey, str], float] = defaultdict(float)
    for end, history, causes in _join_histories(conn, ends, span):
        for cause, seconds in wait_times.sum_by_cause(history, now=end.at, hindrances=causes).items():
            if seconds:
                found[AccountingKey.from_row(end, truncate_to_hour(end.at)), cause] += seconds
    if found:
        rows = [
            asdict(key) | {"cause": cause, "seconds": seconds}
            for (key, cause), seconds in sorted(found.items())
        ]
        conn.execute(ADD.to_statement(conn), rows)


def _join_histories(
    conn: Connection, ends: Sequence[_End], span: LogSpan
) -> Iterator[tuple[_End, Sequence[LogEntry], Sequence[WaitCause]]]:
    """Each end with the log entries since the previous end, and the causes of its task queue."""
    if not ends:
        return
    histories = _read_histories(conn, sorted({end.job_id for end in ends}), span)
    task_queue_ids = {end.task_queue_id for end in ends} - {None}
    since = min(history[0].at for history in histories.values())
    causes = wait_times.read_causes(conn, task_queue_ids, since=since)
    for end in ends:
        yield end, histories[end.log_id], causes.get(end.task_queue_id, ())


def _read_histories(
    conn: Connection, job_ids: Sequence[int], span: LogSpan
) -> Mapping[int, Sequence[LogEntry]]:
    """By log id of an end, all entries since the previous end."""
    histories: dict[int, Sequence[LogEntry]] = {}
    since_end: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for row in conn.execute(LOG_BEFORE, {"job_ids": job_ids, "upto": span.upto}):
        entry = _entry_from_row(row)
        since_end[row.job_id].append(entry)
        if entry.to_status in FINAL:
            histories[row.log_id] = since_end.pop(row.job_id)
    return histories


def _entry_from_row(row: _End) -> LogEntry:
    return LogEntry(
        job_id=row.job_id,
        at=row.at,
        from_status=None if row.from_status is None else JobStatus(row.from_status),
        to_status=JobStatus(row.to_status),
        minor_status=row.minor_status,
        source=row.source,
    )
