"""Number of jobs by status over time, and transitions into each status per minute, without reading the jobs.

The job log is summed by minute. The number of jobs at any time follows from these sums, because all counts
begin at zero and only final jobs are removed. For final statuses only arrivals are counted, so their
numbers include removed jobs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, func, select, type_coerce

from requirements.states import FINAL, JobStatus, read_status
from taskqueue import ownership
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.accounting.sums import FLOWS
from taskqueue.db import sql
from taskqueue.jobs import log
from taskqueue.schema.tables import job_flows, job_log, job_stocks, jobs

_MINUTE = timedelta(minutes=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

_SINCE = bindparam("since", type_=job_flows.c.minute.type)
_BY = (job_flows.c.minute, job_flows.c.status)
MOVES = (
    select(*_BY, func.sum(job_flows.c.came).label("came"), func.sum(job_flows.c.went).label("went"))
    .where(job_flows.c.minute >= _SINCE)
    .group_by(*_BY)
)
FIRST = select(func.min(job_flows.c.minute, type_=job_flows.c.minute.type))
_STOCKS = select(job_stocks.c.vo, job_stocks.c.status, job_stocks.c.jobs)
_is_final = job_stocks.c.status.in_(sorted(FINAL))
STOCKS = _STOCKS.where(~_is_final, job_stocks.c.jobs != 0)
ENDED = _STOCKS.where(_is_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSeries:
    """Data of a plot: equal steps of time, the oldest first."""

    step: timedelta
    begins: Sequence[datetime]  #: of each step
    #: At the end of each step, for statuses that are not final; None before the first change of any job.
    jobs: Mapping[JobStatus, Sequence[int | None]]
    came: Mapping[JobStatus, Sequence[int]]  #: arrivals in each step; for Matched: the matches
    unknown: int  #: steps before the first change of any job


def count_current(
    conn: Connection, vos: Collection[str] | None = None
) -> Mapping[str, Mapping[JobStatus, int]]:
    """Number of jobs that have not ended, some seconds ago, by VO (None: all) and status."""
    return _group_by_vo(conn.execute(STOCKS.where(*ownership.match_values({job_stocks.c.vo: vos}))))


def count_ended(conn: Connection) -> Mapping[str, Mapping[JobStatus, int]]:
    """Number of jobs that ever entered each final status, some seconds ago, by VO; includes removed jobs."""
    return _group_by_vo(conn.execute(ENDED))


def read_series(
    conn: Connection,
    *,
    vos: Collection[str] | None = None,
    since: datetime,
    until: datetime,
    step: timedelta = _MINUTE,
) -> StatusSeries:
    """Number of jobs and transitions over time, summed over some VOs (None: all).

    `step` is a whole number of minutes; steps begin at multiples of it in UTC. `since` is in the first step,
    `until` in the last; `until` has to be the current time.
    """
    begins = list_steps(since, until, step)
    came, gained = _sum_moves(conn, vos, begins[0], step)
    present: Counter[JobStatus] = Counter()
    for of_vo in count_current(conn, vos).values():
        present.update(of_vo)
    first: datetime | None = conn.execute(FIRST).scalar_one()
    unknown = sum(first is None or begin + step <= first for begin in begins)
    living = [status for status in JobStatus if status not in FINAL and status in present.keys() | gained]
    return StatusSeries(
        step=step,
        begins=begins,
        jobs={
            status: [
                *[None] * unknown,
                *_compute_levels(present[status], gained[status], len(begins))[unknown:],
            ]
            for status in living
        },
        unknown=unknown,
        came={status: [jobs[place] for place in range(len(begins))] for status, jobs in came.items()},
    )


def _group_by_vo(rows: Iterable[Row[Any]]) -> Mapping[str, Mapping[JobStatus, int]]:
    found: defaultdict[str, dict[JobStatus, int]] = defaultdict(dict)
    for row in rows:
        found[row.vo][read_status(row.status)] = row.jobs
    return found


def list_steps(since: datetime, until: datetime, step: timedelta) -> Sequence[datetime]:
    """Start times of the steps, multiples of `step` in UTC; `since` is in the first, `until` in the last."""
    first = (since - _BEGINNING) // step
    last = max((until - _BEGINNING) // step, first)
    return [_BEGINNING + number * step for number in range(first, last + 1)]


def _sum_moves(
    conn: Connection, vos: Collection[str] | None, since: datetime, step: timedelta
) -> tuple[Mapping[JobStatus, Counter[int]], Mapping[JobStatus, Counter[int]]]:
    """The arrivals, and the arrivals minus departures, by status and step."""
    came: defaultdict[JobStatus, Counter[int]] = defaultdict(Counter)
    gained: defaultdict[JobStatus, Counter[int]] = defaultdict(Counter)
    statement = MOVES.where(*ownership.match_values({job_flows.c.vo: vos}))
    for row in conn.execute(statement, {"since": since}):
        status, place = read_status(row.status), (row.minute - since) // step
        came[status][place] += int(row.came)
        gained[status][place] += int(row.came - row.went)
    return came, gained


def _compute_levels(present: int, gained: Mapping[int, int], steps: int) -> Sequence[int]:
    """Number of jobs at the end of each step, computed backwards from the current number."""
    level = present - sum(jobs for place, jobs in gained.items() if place >= steps)
    levels = []
    for place in reversed(range(steps)):
        levels.append(level)
        level -= gained.get(place, 0)
    return levels[::-1]


READER_NAME: Final = "flows"

_AT = job_log.c.at
_TRUNCATED_TO_MINUTE: Mapping[str, ColumnElement[Any]] = {
    "postgresql": func.date_trunc("minute", _AT, type_=_AT.type),
    "sqlite": type_coerce(func.substr(_AT, 1, len("2000-01-01 00:00")).concat(":00.000000"), _AT.type),
}


def _select_changes(minute: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    by = (jobs.c.vo, minute.label("minute"), job_log.c.from_status, job_log.c.to_status)
    return (
        select(*by, func.count().label("jobs"))
        .join(jobs, jobs.c.job_id == job_log.c.job_id)
        .where(log.is_within, job_log.c.from_status.is_distinct_from(job_log.c.to_status))
        .group_by(*by)
    )


CHANGES = {dialect: _select_changes(minute) for dialect, minute in _TRUNCATED_TO_MINUTE.items()}


ADD_STOCKS = sql.insert_or_add(job_stocks)

_FlowKey = tuple[datetime, str, str]


def count_flows(conn: Connection, span: LogSpan) -> None:
    """Add up the transitions in a span of the log."""
    came, went = Counter[_FlowKey](), Counter[_FlowKey]()
    for row in conn.execute(CHANGES[conn.dialect.name], span.bounds):
        came[row.minute, row.vo, row.to_status] += row.jobs
        if row.from_status is not None and read_status(row.from_status) not in FINAL:
            went[row.minute, row.vo, row.from_status] += row.jobs
    FLOWS.add(conn, {key: {"came": came[key], "went": went[key]} for key in came | went})
    _add_stocks(conn, came, went)


def _add_stocks(conn: Connection, came: Counter[_FlowKey], went: Counter[_FlowKey]) -> None:
    more = Counter[tuple[str, str]]()
    for (_, vo, status), count in came.items():
        more[vo, status] += count
    for (_, vo, status), count in went.items():
        more[vo, status] -= count
    rows = [{"vo": vo, "status": status, "jobs": count} for (vo, status), count in sorted(more.items())]
    if rows:
        conn.execute(ADD_STOCKS, rows)
