"""For what jobs waited, by the hour in which they ended.

Each time of waiting belongs to the end that it led to: of a job that failed and was started again, the
second end has what it waited since then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Row, bindparam, select
from sqlalchemy.sql.dml import Insert

from taskqueue import hindrances, waiting_time
from taskqueue.accounting import keys, use
from taskqueue.accounting.keys import Key, hour_of
from taskqueue.accounting.log_reader import Span
from taskqueue.hindrances import Hindrance
from taskqueue.log import LogEntry
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import accounted_waits as table
from taskqueue.tables import job_log, jobs
from taskqueue.upserts import Twins, Upsert

NAME: Final = "waits"

_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)
ENDS = keys.told(job_log.c.log_id, job_log.c.job_id, jobs.c.task_queue_id).where(use.is_end)
#: All that had happened to these jobs by the end of the span.
BEFORE = (
    select(job_log)
    .where(job_log.c.job_id.in_(_IDS), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
)


def _add(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=[*keys.NAMES, "cause"],
        set_={"seconds": table.c.seconds + insert.excluded.seconds},
    )


ADD = Twins(table, _add)

_End = Row[*tuple[Any, ...]]


def count(conn: Connection, span: Span) -> None:
    """Add up for what the jobs had waited that ended in a span of the log."""
    ends = conn.execute(ENDS, span.bounds).all()
    found: defaultdict[tuple[Key, str], float] = defaultdict(float)
    for end, ways, seen in _with_their_ways(conn, ends, span):
        for cause, seconds in waiting_time.by_cause(ways, now=end.at, hindrances=seen).items():
            if seconds:
                found[Key.of(end, hour_of(end.at)), cause] += seconds
    if found:
        rows = [
            asdict(key) | {"cause": cause, "seconds": seconds}
            for (key, cause), seconds in sorted(found.items())
        ]
        conn.execute(ADD.of(conn), rows)


def _with_their_ways(
    conn: Connection, ends: Sequence[_End], span: Span
) -> Iterator[tuple[_End, Sequence[LogEntry], Sequence[Hindrance]]]:
    """Each end with what had happened since the end before, and what kept its job from pilots."""
    if not ends:
        return
    ways = _ways(conn, sorted({end.job_id for end in ends}), span)
    task_queue_ids = {end.task_queue_id for end in ends} - {None}
    since = min(way[0].at for way in ways.values())
    seen = hindrances.of_task_queues(conn, task_queue_ids, since=since)
    for end in ends:
        yield end, ways[end.log_id], seen.get(end.task_queue_id, ())


def _ways(conn: Connection, job_ids: Sequence[int], span: Span) -> Mapping[int, Sequence[LogEntry]]:
    """By the row of the log that tells an end, all since the end before."""
    ways: dict[int, Sequence[LogEntry]] = {}
    since_end: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for row in conn.execute(BEFORE, {"job_ids": job_ids, "upto": span.upto}):
        entry = _entry(row)
        since_end[row.job_id].append(entry)
        if entry.to_status in FINAL:
            ways[row.log_id] = since_end.pop(row.job_id)
    return ways


def _entry(row: _End) -> LogEntry:
    return LogEntry(
        job_id=row.job_id,
        at=row.at,
        from_status=None if row.from_status is None else JobStatus(row.from_status),
        to_status=JobStatus(row.to_status),
        minor_status=row.minor_status,
        source=row.source,
    )
