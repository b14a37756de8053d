"""Uptime of the service: intervals in which at least one of its processes could receive pilot reports.

Each process extends its own interval every few seconds, by the clock of the database. A process that is
stopped, hangs or has no database extends nothing, and begins a new interval when it continues. Outside all
intervals no pilot could report, so that time does not count as silence.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from taskqueue.db import clock
from taskqueue.schema.tables import service_uptime as table

#: Seconds between two extensions of an interval.
EVERY: Final = 5.0
#: After a longer time without an extension the process counts as having been down.
_LONGEST_PAUSE: Final = timedelta(seconds=3 * EVERY)
#: Intervals that are read, latest first; leaving out earlier ones can only shorten the uptime.
_MOST: Final = 10_000

#: Earlier than everything that is stored.
NEVER: Final = datetime.min.replace(tzinfo=UTC)

READ = select(table.c.since, table.c.until).order_by(table.c.until.desc()).limit(_MOST)
EXTEND = (
    update(table)
    .where(
        table.c.process == bindparam("the_process"),
        table.c.until >= bindparam("earliest"),
        table.c.since <= bindparam("now"),  # false if the clock was set back: the interval would end first
    )
    .values(until=bindparam("now"))
)
BEGIN = insert(table)
REMOVE = delete(table).where(table.c.until < bindparam("before"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A time in which a process was up."""

    since: datetime
    until: datetime


class Uptime:
    """The times in which at least one process was up."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        """Intervals may overlap, in any order."""
        self._intervals = _merge(intervals)

    def go_back(self, now: datetime, *, seconds: float) -> datetime:
        """Return the latest time since which the service was up for this many seconds in all.

        A pilot whose last report is older was silent for that long while the service could receive it.
        `NEVER` if the service was not up for so long.
        """
        if seconds <= 0:
            return now
        left = timedelta(seconds=seconds)
        for each in self._intervals:
            until = min(each.until, now)
            if each.since < until:
                if left <= until - each.since:
                    return until - left
                left -= until - each.since
        return NEVER

    def clip(self, since: datetime, until: datetime) -> Iterator[Interval]:
        """Its parts between two times, latest first."""
        for each in self._intervals:
            if each.until <= since:
                return  # latest first
            if each.since < until:
                yield Interval(since=max(each.since, since), until=min(each.until, until))

    def restrict(self, intervals: Iterable[Interval]) -> "Uptime":
        """The part of it within other intervals."""
        return Uptime(part for each in _merge(intervals) for part in self.clip(each.since, each.until))


def _merge(intervals: Iterable[Interval]) -> Sequence[Interval]:
    """The same times in intervals that do not overlap, latest first."""
    merged: list[Interval] = []
    for each in sorted(intervals, key=lambda interval: interval.until, reverse=True):
        if merged and each.until >= merged[-1].since:
            since = min(each.since, merged[-1].since)
            merged[-1] = Interval(since=since, until=merged[-1].until)
        else:
            merged.append(each)
    return merged


def record(conn: Connection, process: str, *, now: datetime) -> None:
    """Extend the interval of a process, or begin a new one.

    The name of the process is unique and never used again. `now` is used on SQLite only.
    """
    now = clock.read_time(conn, now)
    values = {"the_process": process, "earliest": now - _LONGEST_PAUSE, "now": now}
    if not conn.execute(EXTEND, values).rowcount:
        conn.execute(BEGIN, {"process": process, "since": now, "until": now})


def read(conn: Connection) -> Uptime:
    """All recorded uptime."""
    return Uptime(Interval(since=row.since, until=row.until) for row in conn.execute(READ))


def remove(conn: Connection, *, before: datetime) -> int:
    """Delete intervals that ended before this time; how many."""
    return conn.execute(REMOVE, {"before": before}).rowcount
