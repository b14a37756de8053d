"""What owners used of late, remembered by the hour: an hour that is over need not be counted again."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cs_config.options import Measure
from taskqueue import use
from taskqueue.accounting.keys import hour_of
from taskqueue.shares import Entity
from taskqueue.use import Use, Uses

#: How long what is remembered of the present is good.
_GOOD_FOR: Final = timedelta(minutes=15)
#: An hour is counted for good when no transaction of it can still be on its way.
_SETTLED: Final = timedelta(minutes=10)
_HOUR: Final = timedelta(hours=1)
#: No slice of time is longer than this and an hour.
_LONGEST: Final = timedelta(days=31, hours=1)

_AMOUNT: Final[Mapping[Measure, Callable[[Use], float]]] = {
    Measure.WALL_TIME: lambda used: used.core_seconds,
    Measure.JOBS: lambda used: used.jobs,
}


class UseHistory:
    """The memory of one process; if it is lost, it is read again."""

    def __init__(self) -> None:
        self._hours: dict[tuple[str, datetime], Uses] = {}
        self._running: dict[str, Uses] = {}
        self._read_at: dict[str, datetime] = {}

    def used(
        self, conn: Connection, vo: str, *, span: timedelta, measure: Measure, now: datetime
    ) -> Mapping[Entity, float]:
        """What each owner of a VO, and each group, used in the time until now, to the whole hour.

        A job counts as a whole: in the hour in which it ended, or while it runs.
        """
        self._forget_what_changes(vo, now)
        if vo not in self._running:
            self._running[vo] = use.running(conn, vo, now=now)
        uses = [self._running[vo], *(self._hour(conn, vo, hour) for hour in _hours(now - span, now))]
        total: defaultdict[Entity, float] = defaultdict(float)
        for each in uses:
            for owner, used in each.items():
                total[owner] += _AMOUNT[measure](used)
                total[Entity(vo, owner.owner_group)] += _AMOUNT[measure](used)
        return total

    def _hour(self, conn: Connection, vo: str, hour: datetime) -> Uses:
        known = self._hours.get((vo, hour))
        if known is None:
            known = self._hours[vo, hour] = use.ended(conn, vo, since=hour, before=hour + _HOUR)
        return known

    def _forget_what_changes(self, vo: str, now: datetime) -> None:
        read_at = self._read_at.get(vo)
        if read_at is not None and timedelta() <= now - read_at < _GOOD_FOR:
            return
        if read_at is not None:
            settled = min(read_at, now) - _SETTLED
            self._running.pop(vo, None)
            self._hours = {
                key: uses
                for key, uses in self._hours.items()
                if key[0] != vo or now - _LONGEST < key[1] + _HOUR <= settled
            }
        self._read_at[vo] = now


def _hours(since: datetime, until: datetime) -> Iterator[datetime]:
    """The beginnings of the hours that touch this time."""
    hour = hour_of(since)
    while hour <= until:
        yield hour
        hour += _HOUR
