"""Priority agent: updates the weights of task queues from shares, usage and waiting jobs.

All weights are recomputed every two minutes and when the configuration changes. A task queue that got its
first jobs is found in the change feed, and its VO is recomputed in the next cycle, a second or two later;
until then it has its last weight, or 1 if it is new. Only differences are written.

Shares are those of the configuration, corrected by recent usage. Usage is cached by the hour, as past hours
do not change.

Source: DIRAC's TaskQueuesAgent.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isclose
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from cs_config.options.operations import options_for
from cs_config.options.options import Measure, TimeSlice
from cs_config.options.registry import Group
from cs_config.tree.configuration import Configuration
from taskqueue.accounting.sums import truncate_to_hour
from taskqueue.db import database
from taskqueue.task_queues import change_feed, priorities, shares
from taskqueue.task_queues.priorities import FamilyCache, NewlyOccupied, OwnerUsage, UsageByHolder
from taskqueue.task_queues.shares import ShareDemand, ShareHolder, UsageSlice

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
        self._hours: dict[tuple[str, datetime], UsageByHolder] = {}
        self._running: dict[str, UsageByHolder] = {}
        self._read_at: dict[str, datetime] = {}

    def read_usage(
        self, conn: Connection, vo: str, *, span: timedelta, measure: Measure, now: datetime
    ) -> Mapping[ShareHolder, float]:
        """Return the usage of each owner and group of a VO in the last `span`, extended to the whole hour.

        A job counts in full: in the hour in which it ended, or while it runs.
        """
        self._drop_unsettled(vo, now)
        if vo not in self._running:
            self._running[vo] = priorities.sum_running(conn, vo, now=now)
        uses, hour = [self._running[vo]], truncate_to_hour(now - span)
        while hour <= now:
            uses.append(self._read_hour(conn, vo, hour))
            hour += _HOUR
        total: defaultdict[ShareHolder, float] = defaultdict(float)
        for each in uses:
            for owner, used in each.items():
                total[owner] += _AMOUNT[measure](used)
                total[ShareHolder(vo, owner.owner_group)] += _AMOUNT[measure](used)
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
class EffectiveShares:
    """Shares of the groups and owners of one VO, corrected by their usage."""

    config: Configuration
    vo: str
    history: UsageCache

    def compute_weights(
        self, conn: Connection, demands: Sequence[ShareDemand], *, now: datetime
    ) -> Mapping[int, float]:
        """Return the weights of the VO's task queues with jobs."""
        groups = self._list_groups(demands)
        of_groups = self._correct(conn, shares.compute_group_shares(demands, groups), group=None, now=now)
        of_entities = shares.compute_holder_shares(demands, groups, of_groups)
        for name in {each.owner_group for each in groups}:
            due = {who: share for who, share in of_entities.items() if who.owner_group == name}
            of_entities |= self._correct(conn, due, group=name, now=now)
        return shares.compute_weights(demands, groups, of_entities)

    def _list_groups(self, demands: Sequence[ShareDemand]) -> Mapping[ShareHolder, Group]:
        names = {each.owner_group for each in demands}
        return {ShareHolder(self.vo, name): self.config.registry.find_group(name, self.vo) for name in names}

    def _correct(
        self, conn: Connection, due: Mapping[ShareHolder, float], *, group: str | None, now: datetime
    ) -> Mapping[ShareHolder, float]:
        """Apply all corrections to the shares of the group's owners; None: to the shares of the groups."""
        for each in options_for(self.config, self.vo).job_scheduling.corrections:
            if each.group == group:
                slices = [self._read_slice(conn, part, each.measure, now) for part in each.slices]
                due = shares.correct_shares(due, slices, max_correction=each.max_global_correction)
        return due

    def _read_slice(
        self, conn: Connection, part: TimeSlice, measure: Measure, now: datetime
    ) -> UsageSlice[ShareHolder]:
        span = timedelta(seconds=part.time_span)
        used = self.history.read_usage(conn, self.vo, span=span, measure=measure, now=now)
        return UsageSlice(used=used, weight=part.weight, max_correction=part.max_correction)


NAME: Final = "priorities"
#: Time between two recomputations of all weights.
INTERVAL: Final = timedelta(seconds=120)
#: Largest relative difference of weights that count as equal.
_SAME: Final = 1e-6
#: Task queues in one transaction: submission of jobs to them waits until it ends.
_BATCH_SIZE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityResult:
    """Numbers of one cycle."""

    vos: tuple[str, ...] = ()  #: that were recomputed
    weighed: int = 0  #: task queues with jobs
    changed: int = 0  #: those whose weight changed
    broken: tuple[str, ...] = ()  #: VOs whose work failed

    def __bool__(self) -> bool:
        return self.changed > 0 or bool(self.broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedCursor:
    """State of the change feed after the last cycle."""

    fence: int  #: of the leadership; if it differs, another process was leader in between
    config_version: int
    position: change_feed.FeedPosition
    whole_at: datetime  #: when all weights were last recomputed
    appeared: frozenset[NewlyOccupied] = frozenset()  #: the feed may repeat them
    broken: frozenset[str] = frozenset()  #: VOs whose last recomputation failed


@dataclass(slots=True)
class PriorityState:
    """State that a process keeps between cycles; without it, the next cycle recomputes everything."""

    history: UsageCache = field(default_factory=UsageCache)
    families: FamilyCache = field(default_factory=FamilyCache)
    cursor: FeedCursor | None = None


def cycle(
    engine: Engine, config: Configuration, *, now: datetime, holder: str, memory: PriorityState
) -> PriorityResult | None:
    """Recompute the weights of each VO where something may have changed; None: not the leader.

    `memory` is the same object in each cycle of a process.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        with database.reading(engine) as conn:
            vos, cursor = _find_vos(conn, config, leadership, memory.cursor)
        if memory.cursor is not None and memory.cursor.position.history != cursor.position.history:
            # They may hold commits that were lost.
            memory.history, memory.families = UsageCache(), FamilyCache()
        results = leadership.serve_each(
            vos,
            lambda vo: _update_weights(
                leadership, EffectiveShares(config=config, vo=vo, history=memory.history), memory.families
            ),
        )
        # After the writes, so that a failed cycle is repeated.
        memory.cursor = replace(cursor, broken=frozenset(leadership.broken))
        return PriorityResult(
            vos=tuple(vos),
            weighed=sum(weighed for weighed, _ in results.values()),
            changed=sum(changed for _, changed in results.values()),
            broken=tuple(sorted(leadership.broken)),
        )


def _find_vos(
    conn: Connection, config: Configuration, leadership: Leadership, last: FeedCursor | None
) -> tuple[Sequence[str], FeedCursor]:
    """Return the VOs to recompute, and the cursor to keep once that is done."""
    read = None
    if last is not None and not _is_whole_due(last, config, leadership):
        read = change_feed.read_changes(conn, last.position)
    if last is None or read is None:
        cursor = FeedCursor(
            fence=leadership.fence,
            config_version=config.version,
            position=change_feed.read_position(conn),
            whole_at=leadership.now,
        )
        return priorities.list_vos(conn), cursor
    found, position = read
    ids = {int(change.key) for change in found if change.kind == change_feed.TASK_QUEUE}
    appeared = priorities.list_newly_occupied(conn, ids)
    vos = sorted({each.vo for each in appeared - last.appeared} | last.broken)
    return vos, replace(last, position=position, appeared=appeared)


def _is_whole_due(last: FeedCursor, config: Configuration, leadership: Leadership) -> bool:
    same = (last.fence, last.config_version) == (leadership.fence, config.version)
    return not same or not timedelta() <= leadership.now - last.whole_at < INTERVAL


def _update_weights(
    leadership: Leadership, holders: EffectiveShares, families: FamilyCache
) -> tuple[int, int]:
    """Return how many task queues of a VO have jobs, and how many of their weights changed."""
    with database.reading(leadership.engine) as conn:
        waiting = priorities.list_weighted(conn, holders.vo, families)
        weights = holders.compute_weights(conn, [each.demand for each in waiting], now=leadership.now)
    different = [
        each.demand
        for each in waiting
        if not isclose(weights[each.demand.task_queue_id], each.weight, rel_tol=_SAME)
    ]
    for start in range(0, len(different), _BATCH_SIZE):
        some = different[start : start + _BATCH_SIZE]
        new = {each.task_queue_id: weights[each.task_queue_id] for each in some}
        with leadership.writing() as conn:
            groups = {each.owner_group for each in some}
            priorities.store_weights(conn, new, owner_groups=groups, now=leadership.now)
    return len(waiting), len(different)
