"""The retention agent's work on a job log in partitions: those to come are made, those that are old dropped.

A partition is dropped when at most some thousands of its rows are kept, which move to the rest. So one that
has rows of a VO that keeps them longer stays; there, and in the rest, old rows are deleted one by one, a week
later than the partition could have been dropped.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from agents.leader import Leadership
from taskqueue import log_retention
from taskqueue.db import database, log_partitions
from taskqueue.db.log_partitions import REST, LogPartition
from taskqueue.log_retention import LogPage

log = logging.getLogger(__name__)

#: Rows that move to the rest, so that a partition can be dropped.
_MOST_MOVED: Final = 10_000
#: Days for which a partition may still become one that can be dropped.
_GRACE: Final = timedelta(days=7)
#: Transactions that write the log are over by then.
_SETTLED: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAges:
    """How long logs are kept."""

    find_cutoff: Callable[[str], datetime]  #: of a VO: the log of jobs that ended before it is old
    ages: Collection[timedelta]  #: of all VOs: at that age, rows become old in any number
    readers: Collection[str]  #: of the log: what one of them has not counted is kept

    @property
    def least(self) -> timedelta:
        """Age below which no row is removed."""
        return max(min(self.ages), _SETTLED)


def tend(leadership: Leadership) -> None:
    """Make the partitions of the days to come, or remove what a killed conversion has left."""
    if leadership.engine.dialect.name == "sqlite":
        return
    with database.reading(leadership.engine) as conn:
        is_partitioned = log_partitions.is_partitioned(conn)
    _try(leadership, log_partitions.make_ahead if is_partitioned else log_partitions.remove_bound)


def clear(leadership: Leadership, ages: LogAges, *, last: datetime | None) -> Counter[str] | None:
    """Drop old partitions and delete old rows; what was removed. None: some are left, since locks were held.

    `last` is the time of the last call that left nothing.
    """
    removed: Counter[str] = Counter()
    with database.reading(leadership.engine) as conn:
        partitions = log_partitions.read_layout(conn).partitions
        closed = log_retention.read_closed_end(conn, ages.readers) if partitions else 0
    if not partitions or not ages.ages:
        return removed
    is_complete = True
    for partition in partitions:
        with database.reading(leadership.engine) as conn:
            newest = log_retention.read_newest(conn, partition.name)
        age = leadership.now - (newest or datetime.min.replace(tzinfo=leadership.now.tzinfo))
        if partition.end > closed or age < ages.least:
            continue
        if (keep := _find_kept(leadership, ages, partition.name)) is not None:
            is_dropped = _drop(leadership, partition, keep)
            removed["partitions of the job log"] += is_dropped
            is_complete &= is_dropped
        elif _became_overdue(age, ages, since_last=_GRACE if last is None else leadership.now - last):
            removed["log rows"] += _remove_rows(leadership, ages, partition.name)
    removed["log rows"] += _remove_rows(leadership, ages, REST)
    return removed if is_complete else None


def _became_overdue(age: timedelta, ages: LogAges, *, since_last: timedelta) -> bool:
    """Whether since the last look a VO's rows of a partition that is so old should have gone with it."""
    return any(age - since_last < each + _GRACE <= age for each in ages.ages)


def _read_pages(leadership: Leadership, ages: LogAges, partition: str) -> Iterator[tuple[int, LogPage]]:
    """Pages of a partition, each with the number that it begins behind."""
    after = -1
    while True:
        with database.reading(leadership.engine) as conn:
            page = log_retention.read_page(
                conn, partition, after=after, find_cutoff=ages.find_cutoff, readers=ages.readers
            )
        if page.rows:
            yield after, page
        if page.rows < log_retention.PAGE:
            return
        after = page.upto


def _find_kept(leadership: Leadership, ages: LogAges, partition: str) -> list[int] | None:
    """Numbers of the rows that are kept; None: too many to move."""
    kept: list[int] = []
    for after, page in _read_pages(leadership, ages, partition):
        with leadership.writing() as conn:
            kept += log_retention.list_kept(conn, partition, page, after=after)
            if len(kept) > _MOST_MOVED:
                return None
            log_retention.store_waits(conn, page)
    return kept


def _drop(leadership: Leadership, partition: LogPartition, keep: Collection[int]) -> bool:
    for work in (
        lambda conn: log_partitions.unlink(conn, partition),
        lambda conn: log_partitions.drop(conn, partition, keep=sorted(keep)),
    ):
        if not _try(leadership, work):
            return False
    return True


def _remove_rows(leadership: Leadership, ages: LogAges, partition: str) -> int:
    total, before = 0, leadership.now - ages.least
    for after, page in _read_pages(leadership, ages, partition):
        if page.oldest is not None and page.oldest >= before:
            break
        with leadership.writing() as conn:
            log_retention.store_waits(conn, page)
            total += log_retention.remove_page(conn, partition, page, after=after, before=before)
    return total


def _try(leadership: Leadership, work: Callable[[Connection], object]) -> bool:
    """Do work in a transaction that waits only a moment for locks; whether it got them."""
    try:
        with leadership.writing() as conn:
            work(conn)
    except DBAPIError as error:
        if not database.is_lock_timeout(error):
            raise
        log.info("%s: the job log is in use, its partitions are left to the next cycle", leadership.name)
        return False
    return True
