"""Accounting agents: one adds up changes of jobs from the job log, each change exactly once.

The other samples depths: how many waiting jobs each site and queue could run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_report
from taskqueue import ownership
from taskqueue.accounting import depths, log_reader, starts, sums, time_series, usage
from taskqueue.accounting.depths import QueueDepth
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.db import database
from taskqueue.jobs import log as job_log
from taskqueue.jobs.log import LogEnd
from taskqueue.task_queues import listing

NAME: Final = "accounting"
DEPTHS: Final = "depths"
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
    LogCounter(name=starts.READER_NAME, count=starts.count_starts),
    # By then the matchers have written why a job was not matched.
    LogCounter(name=usage.WAITS_READER_NAME, count=usage.count_waits, lag=timedelta(minutes=2)),
)


#: Names of the readers of the log that count it.
READERS: Final = frozenset(counter.name for counter in COUNTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingResult:
    """Number of log rows read, by counter."""

    read: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return False  # every cycle reads something: not worth a line in the log


def cycle(engine: Engine, *, now: datetime, holder: str, briefly: bool = False) -> AccountingResult | None:
    """Add up the changes since the last cycle; None while another process is the leader.

    `briefly`: another process may be the leader immediately afterwards.
    """
    with leader.lead(engine, NAME, holder=holder, now=now, briefly=briefly) as leadership:
        if leadership is None:
            return None
        with database.reading(engine) as conn:
            end = job_log.read_end(conn)
        read = {counter.name: count_all(leadership, counter, end) for counter in COUNTERS}
        if leadership.last is None or leadership.last.date() != now.date():
            _roll_up(leadership)
        return AccountingResult(read=read)


def count_all(leadership: Leadership, counter: LogCounter, end: LogEnd) -> int:
    """Count the log up to an end; the number of its rows."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthsResult:
    """Number of places in the sample; 0: none was due."""

    sampled: int = 0

    def __bool__(self) -> bool:
        return False  # routine: not worth a line in the log


def sample_depths(
    engine: Engine, config: Configuration, *, now: datetime, holder: str
) -> DepthsResult | None:
    """Store the sample that is due, if it is not stored; None while another process is the leader."""
    with leader.lead(engine, DEPTHS, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        at = depths.truncate(now)
        with database.reading(engine) as conn:
            latest = depths.read_latest(conn)
            vos = sorted(ownership.list_vos(conn))
        if latest == at:
            return DepthsResult()
        counted = leadership.serve_each(vos, lambda vo: list(_count_depths(engine, config, vo)))
        found = [each for of_vo in counted.values() for each in of_vo]
        with leadership.writing() as conn:
            depths.store_sample(conn, at, found)
        return DepthsResult(sampled=len(found))


def _count_depths(engine: Engine, config: Configuration, vo: str) -> Iterator[QueueDepth]:
    with database.reading(engine) as conn:
        waiting = listing.list_waiting(conn, {vo})
        ads = job_conditions.read_job_ads(conn, config, waiting, needed=config.has_admission)
    runnable = queue_report.count_runnable(config, waiting, ads)
    for site, jobs in runnable.by_site.items():
        yield QueueDepth(site=site, queue=depths.ALL, vo=vo, jobs=jobs)
        for address, number in runnable.count_by_queue(site).items():
            yield QueueDepth(site=site, queue=f"{address.ce}/{address.queue}", vo=vo, jobs=number)
