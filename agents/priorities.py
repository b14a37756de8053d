"""Priority agent: updates the weights of task queues from shares, usage and waiting jobs.

All weights are recomputed every two minutes and when the configuration changes. A task queue that got its
first jobs is found in the change feed, and its VO is recomputed in the next cycle, a second or two later;
until then it has its last weight, or 1 if it is new. Only differences are written.

Source: DIRAC's TaskQueuesAgent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isclose
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.effective_shares import EffectiveShares, UsageCache
from agents.leader import Leadership
from cs_config.tree.configuration import Configuration
from taskqueue.db import database
from taskqueue.task_queues import change_feed, priorities
from taskqueue.task_queues.priorities import FamilyCache, NewlyOccupied

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
        weights = holders.split(conn, [each.demand for each in waiting], now=leadership.now).weights
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
