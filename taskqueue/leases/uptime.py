"""When the service was up: times in which at least one of its processes could receive reports of pilots.

Each process of the service extends its own interval every few seconds, by the clock of the database. A
process that is stopped, that hangs, or whose database is away extends nothing, and begins a new interval
when it goes on. Time that is in no interval is time in which no pilot could be heard.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from taskqueue.schema.tables import service_uptime as table
from taskqueue.sites import matching_delays

#: Seconds between two extensions of an interval.
EVERY: Final = 5.0
#: Between two extensions; after a longer pause the process counts as not having been up meanwhile.
_LONGEST_PAUSE: Final = timedelta(seconds=3 * EVERY)
#: Intervals that are read, the latest first: without the earlier ones less time counts, never more.
_MOST: Final = 10_000

#: Earlier than everything that is stored.
NEVER: Final = datetime.min.replace(tzinfo=UTC)

READ = select(table.c.since, table.c.until).order_by(table.c.until.desc()).limit(_MOST)
EXTEND = (
    update(table)
    .where(
        table.c.process == bindparam("the_process"),
        table.c.until >= bindparam("earliest"),
        table.c.since <= bindparam("now"),  # the clock was set back: one that began later would end before
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
        """Make it of intervals in any order, which may overlap."""
        self._intervals = _merge(intervals)

    def go_back(self, now: datetime, *, seconds: float) -> datetime:
        """Return the latest time since which the service was up for so many seconds in all.

        If a pilot was heard of last before that time, it has been silent for so long while it could be heard.

        Args:
            now: The end of the time that counts.
            seconds: Of uptime, whatever time lies between.

        Returns:
            `NEVER`, if the service was not up for so long.
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


def _merge(intervals: Iterable[Interval]) -> Sequence[Interval]:
    """The same times in intervals that do not overlap, the latest first."""
    merged: list[Interval] = []
    for each in sorted(intervals, key=lambda interval: interval.until, reverse=True):
        if merged and each.until >= merged[-1].since:
            since = min(each.since, merged[-1].since)
            merged[-1] = Interval(since=since, until=merged[-1].until)
        else:
            merged.append(each)
    return merged


def record(conn: Connection, process: str, *, now: datetime) -> None:
    """Note that a process of the service is up.

    Args:
        conn: In a writing transaction.
        process: By a name that no other ever has.
        now: The time, where the database has no clock of its own.
    """
    now = matching_delays.read_time(conn, now)
    values = {"the_process": process, "earliest": now - _LONGEST_PAUSE, "now": now}
    if not conn.execute(EXTEND, values).rowcount:
        conn.execute(BEGIN, {"process": process, "since": now, "until": now})


def read(conn: Connection) -> Uptime:
    """All that is recorded; an installation whose service was never up has none."""
    return Uptime(Interval(since=row.since, until=row.until) for row in conn.execute(READ))


def remove(conn: Connection, *, before: datetime) -> int:
    """Remove the intervals that ended before; how many there were."""
    return conn.execute(REMOVE, {"before": before}).rowcount
