"""Priority agent: updates the weights of task queues from shares, usage and waiting jobs.

In VOs that keep scarce slots for those who have no other (`JobScheduling/Scarcity`) it also counts the slots
that came lately where the jobs of each task queue may run.

All weights are recomputed every two minutes and when the configuration changes. A task queue that got its
first jobs is found in the change feed, and its VO is recomputed in the next cycle, a second or two later;
until then it has its last weight, or 1 if it is new. Its jobs are counted then, those of the others and slots
with all weights: in a VO with millions of jobs somebody submits new kinds of them each second. Only
differences are written.

Source: DIRAC's TaskQueuesAgent.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isclose
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.effective_shares import EffectiveShares, UsageCache
from agents.leader import Leadership
from cs_config.options.operations import options_for
from cs_config.options.options import Scarcity
from cs_config.tree.configuration import Configuration
from matcher.slot_supply import SlotSupply
from taskqueue.db import database
from taskqueue.task_queues import change_feed, listing, priorities
from taskqueue.task_queues.priorities import (
    FamilyCache,
    NewlyOccupied,
    QueuedJobs,
    Weight,
    WeightedTaskQueue,
)

NAME: Final = "priorities"
#: Time between two recomputations of all weights.
INTERVAL: Final = timedelta(seconds=120)
#: Largest relative difference of weights that count as equal.
_SAME: Final = 1e-6
#: The same of numbers of slots.
_SAME_SUPPLY: Final = 0.05
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
    counted: dict[str, dict[int, QueuedJobs]] = field(default_factory=dict)  #: by VO and task queue
    supplies: dict[str, SlotSupply] = field(default_factory=dict)  #: by VO, of those with scarcity
    #: Task queues whose classes were read for them. Those of a later release cannot be read.
    supplied: set[int] = field(default_factory=set)
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
        if cursor.whole_at == now:
            memory.counted.clear()
            memory.supplies.clear()
            memory.supplied.clear()
        appeared = {each.task_queue_id for each in cursor.appeared}
        memory.supplied -= appeared
        results = leadership.serve_each(
            vos,
            lambda vo: _update_weights(
                leadership,
                EffectiveShares(config=config, vo=vo, history=memory.history),
                memory,
                appeared,
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
    leadership: Leadership, holders: EffectiveShares, memory: PriorityState, appeared: Collection[int]
) -> tuple[int, int]:
    """Return how many task queues of a VO have jobs, and how many of their weights changed."""
    with database.reading(leadership.engine) as conn:
        counted = _count_jobs(conn, holders.vo, memory, appeared)
        waiting = priorities.list_weighted(conn, holders.vo, memory.families, counted)
        split = holders.split(conn, [each.demand for each in waiting], now=leadership.now).weights
        slots = _count_slots(conn, holders, memory, waiting, leadership.now)
        supplies = _list_supplies(slots, waiting)
    weights = {number: Weight(weight, supplies.get(number)) for number, weight in split.items()}
    different = [
        each.demand for each in waiting if not _is_same(weights[each.demand.task_queue_id], each.weight)
    ]
    for start in range(0, len(different), _BATCH_SIZE):
        some = different[start : start + _BATCH_SIZE]
        new = {each.task_queue_id: weights[each.task_queue_id] for each in some}
        with leadership.writing() as conn:
            groups = {each.owner_group for each in some}
            priorities.store_weights(conn, new, owner_groups=groups, now=leadership.now)
    return len(waiting), len(different)


def _count_jobs(
    conn: Connection, vo: str, memory: PriorityState, appeared: Collection[int]
) -> Mapping[int, QueuedJobs]:
    """The jobs of the task queues of a VO: those of task queues that appeared now, others lately."""
    known = memory.counted.get(vo)
    if known is None:
        known = memory.counted[vo] = priorities.count_jobs(conn, vo)
    else:
        for task_queue_id in appeared:
            known.pop(task_queue_id, None)
        known |= priorities.count_jobs_of(conn, appeared)
    return known


def _count_slots(
    conn: Connection,
    holders: EffectiveShares,
    memory: PriorityState,
    waiting: Sequence[WeightedTaskQueue],
    now: datetime,
) -> Mapping[str, int]:
    """Slots for each class of a VO, of new classes by the numbers of before; none where it keeps none."""
    config, vo = holders.config, holders.vo
    if options_for(config, vo).job_scheduling.scarcity is Scarcity.OFF:
        return {}
    supply = memory.supplies.get(vo)
    if supply is None:
        supply = memory.supplies[vo] = SlotSupply(conn, config, vo, now=now)
    new = {each.demand.task_queue_id for each in waiting if each.digest not in supply.of_classes}
    new -= memory.supplied
    supply.add(conn, listing.list_waiting_in(conn, new))
    memory.supplied |= new
    return supply.of_classes


def _list_supplies(of_classes: Mapping[str, int], waiting: Sequence[WeightedTaskQueue]) -> Mapping[int, int]:
    """Slots by task queue; none of owners whose jobs differ in priority: that is their own order."""
    raw: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
    for each in waiting:
        raw[each.demand.owner_group, each.demand.owner].add(each.demand.raw)
    return {
        each.demand.task_queue_id: of_classes[each.digest]
        for each in waiting
        if each.digest in of_classes and len(raw[each.demand.owner_group, each.demand.owner]) == 1
    }


def _is_same(new: Weight, stored: Weight) -> bool:
    if (new.supply is None) != (stored.supply is None):
        return False
    close = isclose(new.supply or 0, stored.supply or 0, rel_tol=_SAME_SUPPLY)
    return close and isclose(new.priority, stored.priority, rel_tol=_SAME)
