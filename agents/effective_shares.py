"""Shares of groups and owners in force: those of the configuration, corrected by recent usage.

Usage is cached by the hour, as past hours do not change. Where a time slice has a half-life, the usage of an
hour counts half when that time has passed since its end. It is computed from the stored jobs, so that it
outlives restarts, and is the same in every process.

Source of the decay: HTCondor's PRIORITY_HALFLIFE.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cs_config.options.operations import options_for
from cs_config.options.options import Measure, ShareCorrection, TimeSlice
from cs_config.tree.configuration import Configuration
from taskqueue.accounting.sums import truncate_to_hour
from taskqueue.task_queues import priorities, shares
from taskqueue.task_queues.priorities import OwnerUsage, UsageByHolder
from taskqueue.task_queues.shares import ShareDemand, ShareHolder, ShareSplit, UsageSlice

#: Lifetime of the cached usage of running jobs and of recent hours.
_CACHE_TIME: Final = timedelta(minutes=15)
#: An hour is final this long after its end: no transaction of it can still be open.
_SETTLED: Final = timedelta(minutes=10)
_HOUR: Final = timedelta(hours=1)
#: Longest time slice of a correction, rounded up by an hour.
_LONGEST: Final = timedelta(days=31, hours=1)

_AMOUNT: Final[Mapping[Measure, Callable[[OwnerUsage], float]]] = {
    Measure.WALL_TIME: lambda used: used.core_seconds,
    Measure.JOBS: lambda used: used.jobs,
}


class UsageCache:
    """Usage by hour, cached in one process; it can be read again at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one thread reads, the others find what it has read
        self._hours: dict[tuple[str, datetime], UsageByHolder] = {}
        self._running: dict[str, UsageByHolder] = {}
        self._read_at: dict[str, datetime] = {}

    def read_usage(
        self, conn: Connection, vo: str, part: TimeSlice, *, measure: Measure, now: datetime
    ) -> Mapping[ShareHolder, float]:
        """Return the usage of each owner and group of a VO in a time slice, extended to the whole hour.

        A job counts in full: in the hour in which it ended, or while it runs. Decay is that of the time when
        the usage was read, so that weights change only with new usage.
        """
        with self._lock:
            self._drop_unsettled(vo, now)
            if vo not in self._running:
                self._running[vo] = priorities.sum_running(conn, vo, now=now)
            uses = [(1.0, self._running[vo])]
            hour = truncate_to_hour(now - timedelta(seconds=part.span))
            while hour <= now:
                age = self._read_at[vo] - (hour + _HOUR)
                uses.append((part.decay(age), self._read_hour(conn, vo, hour)))
                hour += _HOUR
        total: defaultdict[ShareHolder, float] = defaultdict(float)
        for factor, each in uses:
            for owner, used in each.items():
                amount = factor * _AMOUNT[measure](used)
                total[owner] += amount
                total[ShareHolder(vo, owner.owner_group)] += amount
        return total

    def _read_hour(self, conn: Connection, vo: str, hour: datetime) -> UsageByHolder:
        if (vo, hour) not in self._hours:
            self._hours[vo, hour] = priorities.sum_ended(conn, vo, since=hour, before=hour + _HOUR)
        return self._hours[vo, hour]

    def _drop_unsettled(self, vo: str, now: datetime) -> None:
        read_at = self._read_at.get(vo)
        if read_at is not None and timedelta() <= now - read_at < _CACHE_TIME:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedUsage:
    """Usage in one time slice of a correction."""

    correction: ShareCorrection
    part: TimeSlice
    used: Mapping[ShareHolder, float]  #: core-seconds or jobs, by owner and by group


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveShares:
    """Shares of the groups and owners of one VO, corrected by their usage."""

    config: Configuration
    vo: str
    history: UsageCache

    def split(self, conn: Connection, demands: Sequence[ShareDemand], *, now: datetime) -> ShareSplit:
        """Split the shares over the VO's task queues with jobs."""
        names = {each.owner_group for each in demands}
        groups = {
            ShareHolder(self.vo, name): self.config.registry.find_group(name, self.vo) for name in names
        }
        stated = shares.compute_group_shares(demands, groups)
        of_groups = self._correct(conn, stated, group=None, now=now)
        even = shares.compute_holder_shares(demands, groups, of_groups)
        of_holders = dict(even)
        for name in names:
            due = {who: share for who, share in even.items() if who.owner_group == name}
            of_holders |= self._correct(conn, due, group=name, now=now)
        return ShareSplit(
            stated=stated,
            of_groups=of_groups,
            even=even,
            of_holders=of_holders,
            weights=shares.compute_weights(demands, groups, of_holders),
        )

    def list_usage(self, conn: Connection, *, now: datetime) -> list[CountedUsage]:
        """The usage that the corrections of the VO compare with its shares."""
        corrections = options_for(self.config, self.vo).job_scheduling.corrections
        return [used for each in corrections for used in self._read_slices(conn, each, now)]

    def _correct(
        self, conn: Connection, due: Mapping[ShareHolder, float], *, group: str | None, now: datetime
    ) -> Mapping[ShareHolder, float]:
        """Apply all corrections to the shares of the group's owners; None: to the shares of the groups."""
        for each in options_for(self.config, self.vo).job_scheduling.corrections:
            if each.group == group:
                slices = [
                    UsageSlice(
                        used=counted.used,
                        weight=counted.part.weight,
                        max_correction=counted.part.max_correction,
                    )
                    for counted in self._read_slices(conn, each, now)
                ]
                due = shares.correct_shares(due, slices, max_correction=each.max_global_correction)
        return due

    def _read_slices(
        self, conn: Connection, correction: ShareCorrection, now: datetime
    ) -> list[CountedUsage]:
        return [
            CountedUsage(
                correction=correction,
                part=part,
                used=self.history.read_usage(conn, self.vo, part, measure=correction.measure, now=now),
            )
            for part in correction.slices
        ]
