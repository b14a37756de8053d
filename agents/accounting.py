"""Accounting agent: adds up changes of jobs from the job log, each change exactly once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from taskqueue.accounting import log_reader, sums, time_series, usage
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.db import database
from taskqueue.jobs import log as job_log
from taskqueue.jobs.log import LogEnd

NAME: Final = "accounting"
#: Log rows per transaction, and transactions per counter and cycle.
_MOST: Final = 10_000
_ROUNDS: Final = 50
#: Retention of numbers by the minute, of sums by the hour, and of job flows.
_MINUTES: Final = timedelta(days=3)
_HOURS: Final = timedelta(days=90)
_FLOWS: Final = timedelta(days=400)
#: Hours rolled up per cycle and rollup at most; the rest follows the next day.
_MAX_CHUNKS: Final = 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCounter:
    """A number that is added up from the job log."""

    name: str
    count: Callable[[Connection, LogSpan], None]
    lag: timedelta = timedelta()  #: delay after a change until all its data are stored


COUNTERS: Final[Sequence[LogCounter]] = (
    LogCounter(name=time_series.READER_NAME, count=time_series.count_flows),
    LogCounter(name=usage.READER_NAME, count=usage.count_usage),
    # By then the matchers have written why a job was not matched.
    LogCounter(name=usage.WAITS_READER_NAME, count=usage.count_waits, lag=timedelta(minutes=2)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingResult:
    """Number of log rows read, by counter."""

    read: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return False  # every cycle reads something: not worth a line in the log


def cycle(engine: Engine, *, now: datetime, holder: str) -> AccountingResult | None:
    """Add up the changes since the last cycle; None while another process is the leader."""
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        with database.reading(engine) as conn:
            end = job_log.read_end(conn)
        read = {counter.name: _count_all(leadership, counter, end) for counter in COUNTERS}
        if leadership.last is None or leadership.last.date() != now.date():
            _roll_up(leadership)
        return AccountingResult(read=read)


def _count_all(leadership: Leadership, counter: LogCounter, end: LogEnd) -> int:
    with leadership.writing() as conn:
        log_reader.note_end(conn, counter.name, end)
    return leadership.repeat(lambda conn: _count(conn, counter, leadership.now), most=_MOST, rounds=_ROUNDS)


def _count(conn: Connection, counter: LogCounter, now: datetime) -> int:
    span = log_reader.read_next_span(conn, counter.name, now=now, lag=counter.lag, most=_MOST)
    if span is None:
        return 0
    log_reader.advance(conn, counter.name, span)
    counter.count(conn, span)
    return span.rows


def _roll_up(leadership: Leadership) -> None:
    """Replace old numbers by sums over longer intervals."""
    for table, age in ((sums.FLOWS, _MINUTES), (sums.USE, _HOURS), (sums.WAITS, _HOURS)):
        step = partial(sums.roll_up_oldest, sums=table, before=leadership.now - age)
        leadership.repeat(step, most=1, rounds=_MAX_CHUNKS)
    with leadership.writing() as conn:
        sums.remove_flows(conn, before=leadership.now - _FLOWS)
