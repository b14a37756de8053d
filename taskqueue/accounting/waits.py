"""For what jobs waited, by the hour in which they ended.

Each time of waiting belongs to the end that it led to: of a job that failed and was started again, the
second end has what it waited since then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Row, and_, bindparam, select
from sqlalchemy.sql.dml import Insert

from taskqueue import hindrances, waiting_time
from taskqueue.accounting import use
from taskqueue.accounting.log_reader import Span, is_within
from taskqueue.accounting.use import Key
from taskqueue.hindrances import Hindrance
from taskqueue.log import LogEntry
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import accounted_waits as table
from taskqueue.tables import attempts, job_log, jobs
from taskqueue.upserts import Twins, Upsert

NAME: Final = "waits"

_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)
ENDS = (
    select(
        job_log.c.log_id,
        job_log.c.job_id,
        job_log.c.at,
        job_log.c.to_status,
        jobs.c.vo,
        jobs.c.owner,
        jobs.c.owner_group,
        jobs.c.task_queue_id,
        attempts.c.site,
        attempts.c.ce,
        attempts.c.queue,
    )
    .join(jobs, jobs.c.job_id == job_log.c.job_id)
    .outerjoin(attempts, and_(attempts.c.job_id == job_log.c.job_id, attempts.c.epoch == job_log.c.epoch))
    .where(is_within, use.is_end)
)
#: All that had happened to these jobs by the end of the span.
BEFORE = (
    select(job_log)
    .where(job_log.c.job_id.in_(_IDS), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WaitKey(Key):
    """What sums are kept by."""

    cause: str


def _add(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=[each.name for each in fields(WaitKey)],
        set_={"seconds": table.c.seconds + insert.excluded.seconds},
    )


ADD = Twins(table, _add)

_End = Row[*tuple[Any, ...]]


def count(conn: Connection, span: Span) -> None:
    """Add up for what the jobs had waited that ended in a span of the log."""
    ends = conn.execute(ENDS, span.bounds).all()
    found: defaultdict[WaitKey, float] = defaultdict(float)
    for end, ways, seen in _with_their_ways(conn, ends, span):
        for cause, seconds in waiting_time.by_cause(ways, now=end.at, hindrances=seen).items():
            if seconds:
                found[_key(end, cause)] += seconds
    if found:
        conn.execute(ADD.of(conn), [asdict(key) | {"seconds": found[key]} for key in sorted(found)])


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


def _key(end: _End, cause: str) -> WaitKey:
    return WaitKey(
        hour=use.hour_of(end.at),
        vo=end.vo,
        site=end.site or "",
        ce=end.ce or "",
        queue=end.queue or "",
        owner=end.owner,
        owner_group=end.owner_group,
        status=end.to_status,
        cause=cause,
    )
