"""Wait times of jobs by cause, booked in the hour in which the job ended.

Each wait belongs to the end that followed it: for a job that failed and was rescheduled, the second end
gets only the waits since the first one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from taskqueue.accounting import usage
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.accounting.sums import WAITS, truncate_to_hour
from taskqueue.db import sql
from taskqueue.jobs import log, wait_times
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.wait_times import WaitCause
from taskqueue.schema.tables import job_log, jobs
from taskqueue.states import FINAL

READER_NAME: Final = "waits"

ENDS = usage.select_log_rows(job_log.c.log_id, job_log.c.job_id, jobs.c.task_queue_id).where(usage.is_end)
#: All log rows of these jobs up to the end of the span.
LOG_BEFORE = (
    select(job_log.c.log_id, *log.COLUMNS)
    .where(job_log.c.job_id.in_(sql.IDS), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
)


_End = Row[*tuple[Any, ...]]


def count_waits(conn: Connection, span: LogSpan) -> None:
    """Add up the wait times of the jobs that ended in a span of the log."""
    ends = conn.execute(ENDS, span.bounds).all()
    found: defaultdict[tuple[Any, ...], float] = defaultdict(float)
    for end, history, causes in _join_histories(conn, ends, span):
        for cause, seconds in wait_times.sum_by_cause(history, now=end.at, wait_causes=causes).items():
            if seconds:
                found[*usage.get_key(end, truncate_to_hour(end.at)), cause] += seconds
    WAITS.add(conn, {key: {"seconds": seconds} for key, seconds in found.items()})


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
    for log_id, *row in conn.execute(LOG_BEFORE, {"ids": job_ids, "upto": span.upto}):
        entry = log.entry_from_row(row)
        since_end[entry.job_id].append(entry)
        if entry.to_status in FINAL:
            histories[log_id] = since_end.pop(entry.job_id)
    return histories
