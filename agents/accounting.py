"""Accounting agent: adds up changes of jobs from the job log, each change exactly once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from taskqueue.accounting import log_reader, sums, time_series, usage, wait_sums
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.accounting.sums import SumTable

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
    LogCounter(name=wait_sums.READER_NAME, count=wait_sums.count_waits, lag=timedelta(minutes=2)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingResult:
    """Number of log rows read, by counter."""

    read: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return False  # every cycle reads something: not worth a line in the log


def cycle(engine: Engine, *, now: datetime, holder: str) -> AccountingResult | None:
    """Add up the changes since the last cycle; None while another process is the leader.

    `holder` is a name that is unique to this process.
    """
    leadership = leader.acquire(engine, NAME, holder=holder, now=now)
    if leadership is None:
        return None
    read = {account.name: _count_all(leadership, account) for account in COUNTERS}
    if leadership.last is None or leadership.last.date() != now.date():
        _roll_up(leadership)
    leadership.finish()
    return AccountingResult(read=read)


def _count_all(leadership: Leadership, account: LogCounter) -> int:
    with leadership.writing() as conn:
        log_reader.note_end(conn, account.name)
    return leadership.repeat(lambda conn: _count(conn, account, leadership.now), most=_MOST, rounds=_ROUNDS)


def _roll_up(leadership: Leadership) -> None:
    """Replace old numbers by sums over longer intervals."""
    for table, age in ((sums.FLOWS, _MINUTES), (sums.USE, _HOURS), (sums.WAITS, _HOURS)):
        _roll_up_one(leadership, table, leadership.now - age)
    with leadership.writing() as conn:
        sums.remove_flows(conn, before=leadership.now - _FLOWS)


def _roll_up_one(leadership: Leadership, table: SumTable, before: datetime) -> None:
    leadership.repeat(
        lambda conn: sums.roll_up_oldest(conn, table, before=before), most=1, rounds=_MAX_CHUNKS
    )


def _count(conn: Connection, account: LogCounter, now: datetime) -> int:
    span = log_reader.read_next_span(conn, account.name, now=now, lag=account.lag, most=_MOST)
    if span is None:
        return 0
    log_reader.advance(conn, account.name, span)
    account.count(conn, span)
    return span.rows
