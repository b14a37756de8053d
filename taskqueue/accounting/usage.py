"""Resource usage of closed attempts and number of ended jobs, by hour, VO, owner, place and final status.

Wall time is booked in the hours in which it was spent, so wall time divided by the length of an hour is the
number of busy cores. Jobs and attempts are booked in the hour of their end. A job that failed and was
rescheduled ends again and counts again.

Wait times of jobs are booked by cause, in the hour in which the job ended. Each wait belongs to the end that
followed it: for a job that failed and was rescheduled, the second end gets only the waits since the first
one.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, or_, select

from requirements.states import FINAL, HELD, JobStatus
from taskqueue.accounting import wait_times
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.accounting.sums import USE, WAITS, truncate_to_hour
from taskqueue.db import sql
from taskqueue.jobs import log
from taskqueue.jobs.log import LogEntry
from taskqueue.schema.tables import attempts, job_log, jobs
from taskqueue.task_queues import wait_causes
from taskqueue.task_queues.wait_causes import WaitCause

#: Hour, VO, site, CE, queue, owner, owner group, and new status of the job: final, or Rescheduled.
AccountingKey = tuple[datetime, str, str, str, str, str, str, str]

_LOG_COLUMNS = (job_log.c.at, job_log.c.to_status)
_JOB_COLUMNS = (jobs.c.vo, jobs.c.owner, jobs.c.owner_group)
_ATTEMPT_COLUMNS = (attempts.c.site, attempts.c.ce, attempts.c.queue)


def select_log_rows(*more: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Rows of a span of the log with the columns of keys, and more columns of log, job and attempt."""
    return (
        select(*_LOG_COLUMNS, *_JOB_COLUMNS, *_ATTEMPT_COLUMNS, *more)
        .join(jobs, jobs.c.job_id == job_log.c.job_id)
        .outerjoin(attempts, and_(attempts.c.job_id == job_log.c.job_id, attempts.c.epoch == job_log.c.epoch))
        .where(log.is_within)
    )


def get_key(row: Row[*tuple[Any, ...]], hour: datetime) -> AccountingKey:
    """The key of a row of `select_log_rows`, for that hour; the place is empty if there was no attempt."""
    place = (row.site or "", row.ce or "", row.queue or "")
    return hour, row.vo, *place, row.owner, row.owner_group, row.to_status


READER_NAME: Final = "use"

_HOUR: Final = timedelta(hours=1)
#: Longer than any batch slot: such a time comes from a wrong clock and is not counted.
_LONGEST: Final = timedelta(days=60)

_FINAL, _HELD = sorted(FINAL), sorted(HELD)
_FROM, _TO = job_log.c.from_status, job_log.c.to_status
is_end = and_(_TO.in_(_FINAL), _FROM.not_in(_FINAL))
_leaves_pilot = and_(_FROM.in_(_HELD), _TO.not_in(_HELD))
#: A killed job; its attempt stays open until its pilot has ended it.
_is_late_end = and_(_FROM == _TO, _TO.in_([JobStatus.KILLED.value, JobStatus.DELETED.value]))

ENDED_ATTEMPTS = select_log_rows(
    *(_FROM, attempts.c.started_at, attempts.c.lost_at, attempts.c.closed_at),
    *(attempts.c.processors, attempts.c.request),
).where(or_(is_end, _leaves_pilot, _is_late_end))


#: Largest CPU time that is counted, by core time: reports come from nodes that may be hostile. More than 1,
#: since a payload may use more cores than it was allotted for a moment.
_MOST_EFFICIENT: Final = 1.1
#: Largest power of a processor that is counted, in normalised seconds a second: no processor has more.
_MOST_POWER: Final = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums of usage."""

    jobs: int = 0  #: ended jobs
    attempts: int = 0  #: attempts that were started and are closed
    wall_seconds: float = 0.0  #: of attempts
    core_seconds: float = 0.0  #: wall time times the cores allotted to the job
    cpu_seconds: float = 0.0  #: as reported by pilots, within what their cores can have used
    told_core_seconds: float = 0.0  #: core time of attempts with reported CPU time
    normalised_seconds: float = 0.0  #: CPU time in units of a reference processor, if its power was reported

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in SUM_NAMES})

    def __mul__(self, share: float) -> "Usage":
        """Scale the times; jobs and attempts become 0."""
        return Usage(**{name: getattr(self, name) * share for name in SUM_NAMES if name.endswith("seconds")})


SUM_NAMES: Final = tuple(each.name for each in fields(Usage))


def count_usage(conn: Connection, span: LogSpan) -> None:
    """Add up the usage of all attempts and jobs that ended in a span of the log."""
    found: defaultdict[AccountingKey, Usage] = defaultdict(Usage)
    for row in conn.execute(ENDED_ATTEMPTS, span.bounds):
        for key, used in _list_usage(row):
            found[key] += used
    USE.add(conn, {key: asdict(used) for key, used in found.items()})


def spread_over_hours(since: datetime, until: datetime) -> Iterator[tuple[datetime, float]]:
    """The hours that an interval touches, each with its fraction of the interval."""
    length = (until - since).total_seconds()
    if not 0 < length <= _LONGEST.total_seconds():
        yield truncate_to_hour(until), 1.0
        return
    hour = truncate_to_hour(since)
    while hour < until:
        inside = min(hour + _HOUR, until) - max(hour, since)
        yield hour, inside.total_seconds() / length
        hour += _HOUR


def _list_usage(row: Row[*tuple[Any, ...]]) -> Iterator[tuple[AccountingKey, Usage]]:
    end_key = get_key(row, truncate_to_hour(row.at))
    if row.to_status in FINAL and row.from_status not in FINAL:
        yield end_key, Usage(jobs=1)
    if row.started_at is None or not _is_closed(row):
        return
    yield end_key, Usage(attempts=1)
    was_lost = row.lost_at is not None and row.lost_at < row.at
    since = row.lost_at if was_lost else row.started_at
    # If the attempt was lost and resumed, the pilot's final report does not belong to the row of the loss.
    request = None if row.to_status == JobStatus.RESCHEDULED else row.request
    used = measure_attempt(
        since=since, until=row.at, started_at=row.started_at, processors=row.processors, request=request
    )
    for hour, share in spread_over_hours(since, row.at):
        yield get_key(row, hour), used * share


def _is_closed(row: Row[*tuple[Any, ...]]) -> bool:
    """Whether this log row closed the attempt: each attempt has one such row."""
    if row.from_status == row.to_status:
        return bool(row.closed_at == row.at)
    return row.from_status in HELD and row.to_status != JobStatus.KILLED


def measure_attempt(
    *, since: datetime, until: datetime, started_at: datetime, processors: int | None, request: str | None
) -> Usage:
    """The times of a piece of an attempt, by the finish report in the request that closed it, if any."""
    wall, cores = _wall_seconds(since, until), processors or 1
    reported: Mapping[str, float | None]
    reported = {} if request is None else json.loads(request).get("finish", {})
    cpu, power = reported.get("cpu_seconds"), reported.get("cpu_power")
    whole = _wall_seconds(started_at, until) * cores  # CPU time is of the whole attempt
    counted = min(cpu or 0.0, round(_MOST_EFFICIENT * whole, 3))
    return Usage(
        wall_seconds=wall,
        core_seconds=wall * cores,
        cpu_seconds=counted,
        told_core_seconds=0.0 if cpu is None else whole,
        normalised_seconds=counted * min(power or 0.0, _MOST_POWER),
    )


def _wall_seconds(since: datetime, until: datetime) -> float:
    seconds = (until - since).total_seconds()
    return seconds if 0 < seconds <= _LONGEST.total_seconds() else 0.0


WAITS_READER_NAME: Final = "waits"

ENDS = select_log_rows(job_log.c.log_id, job_log.c.job_id, jobs.c.task_queue_id).where(is_end)
#: All log rows of these jobs up to the end of the span.
LOG_BEFORE = (
    select(job_log.c.log_id, *log.COLUMNS)
    .where(sql.is_listed(job_log.c.job_id), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
)


_End = Row[*tuple[Any, ...]]


def count_waits(conn: Connection, span: LogSpan) -> None:
    """Add up the wait times of the jobs that ended in a span of the log."""
    ends = conn.execute(ENDS, span.bounds).all()
    found: defaultdict[tuple[Any, ...], float] = defaultdict(float)
    for end, history, causes in _join_histories(conn, ends, span):
        for cause, seconds in wait_times.sum_by_cause(history, now=end.at, causes=causes).items():
            if seconds:
                found[*get_key(end, truncate_to_hour(end.at)), cause] += seconds
    WAITS.add(conn, {key: {"seconds": seconds} for key, seconds in found.items()})


def _join_histories(
    conn: Connection, ends: Sequence[_End], span: LogSpan
) -> Iterator[tuple[_End, Sequence[LogEntry], Sequence[WaitCause]]]:
    """Each end with the log entries since the previous end, and the causes of the job's task queues."""
    if not ends:
        return
    histories = _read_histories(conn, sorted({end.job_id for end in ends}), span)
    task_queue_ids = {end.job_id: end.task_queue_id for end in ends}
    since = min(history[0].at for history in histories.values())
    causes = wait_causes.read_causes_of_jobs(conn, task_queue_ids, since=since)
    for end in ends:
        yield end, histories[end.log_id], causes[end.job_id]


def _read_histories(
    conn: Connection, job_ids: Sequence[int], span: LogSpan
) -> Mapping[int, Sequence[LogEntry]]:
    """All entries since the previous end, by the log id of each end."""
    histories: dict[int, Sequence[LogEntry]] = {}
    since_end: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for log_id, *row in conn.execute(LOG_BEFORE, {"ids": job_ids, "upto": span.upto}):
        entry = log.entry_from_row(row)
        since_end[entry.job_id].append(entry)
        if entry.to_status in FINAL:
            histories[log_id] = since_end.pop(entry.job_id)
    return histories
