"""The priority agent: keeps the weights of task queues in step with shares and with what waits.

Everything is weighed anew every two minutes, and when the configuration changes. A task queue that got
its first jobs is found in the feed of changes, and its VO is weighed anew in the next cycle, a second or
two later; until then it has the weight that it had the last time, or 1 if it is new. Only differences are
written.

Source: DIRAC's TaskQueuesAgent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isclose
from typing import Final

from sqlalchemy import Connection, Engine

from agents import turn
from agents.share_holders import ShareHolders
from agents.turn import Turn
from agents.use_history import UseHistory
from cs_config.configuration import Configuration
from taskqueue import changes, database, priorities
from taskqueue.priorities import Appeared, Families, Weighed

NAME: Final = "priorities"
#: How often everything is weighed anew.
INTERVAL: Final = timedelta(seconds=120)
#: Relative difference that is none.
_SAME: Final = 1e-6
#: Task queues in one transaction: whoever puts a job into one of them waits for its end.
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityResult:
    """What a cycle did."""

    vos: tuple[str, ...] = ()  #: that were weighed anew
    weighed: int = 0  #: task queues with jobs
    changed: int = 0  #: those of them with another weight now
    broken: tuple[str, ...] = ()  #: VOs that were not weighed because of an error

    def __bool__(self) -> bool:
        return self.changed > 0 or bool(self.broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far a cycle has looked."""

    fence: int  #: of the turn; another one means that another process looked meanwhile
    config_version: int
    position: changes.Position  #: in the feed
    whole_at: datetime  #: when everything was weighed the last time
    appeared: frozenset[Appeared] = frozenset()  #: the feed may say the same again
    broken: frozenset[str] = frozenset()  #: VOs at which the last weighing broke


@dataclass(slots=True)
class Memory:
    """What the agent of one process remembers from cycle to cycle; without it, it looks at everything."""

    history: UseHistory = field(default_factory=UseHistory)
    families: Families = field(default_factory=Families)
    look: Look | None = None


def cycle(
    engine: Engine, config: Configuration, *, now: datetime, holder: str, memory: Memory
) -> PriorityResult | None:
    """Weigh the task queues of each VO where something may have changed.

    Args:
        engine: The database.
        config: The current configuration.
        now: The time.
        holder: This process, by a name that no other ever has.
        memory: Of this process; the same one in each cycle.

    Returns:
        None: another process does this now.
    """
    mine = turn.take(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    with database.reading(engine) as conn:
        vos, look = _look_around(conn, config, mine, memory.look)
    if memory.look is not None and memory.look.position.history != look.position.history:
        memory.history, memory.families = UseHistory(), Families()  # of commits that may be lost
    results = mine.serve_each(
        vos,
        lambda vo: _weigh(mine, ShareHolders(config=config, vo=vo, history=memory.history), memory.families),
    )
    broken = tuple(vo for vo in vos if vo not in results)
    # Only now: what was not written is looked at again.
    memory.look = replace(look, broken=frozenset(broken))
    mine.finish()
    return PriorityResult(
        vos=tuple(vos),
        weighed=sum(weighed for weighed, _ in results.values()),
        changed=sum(changed for _, changed in results.values()),
        broken=broken,
    )


def _look_around(
    conn: Connection, config: Configuration, mine: Turn, last: Look | None
) -> tuple[Sequence[str], Look]:
    """The VOs to weigh anew, and what to remember once that is done."""
    if last is None or _is_whole_due(last, config, mine):
        return _everything(conn, config, mine)
    read = changes.read(conn, last.position)
    if read is None:
        return _everything(conn, config, mine)
    found, position = read
    ids = {int(change.key) for change in found if change.kind == changes.TASK_QUEUE}
    appeared = priorities.appeared(conn, ids)
    vos = sorted({each.vo for each in appeared - last.appeared} | last.broken)
    return vos, replace(last, position=position, appeared=appeared)


def _everything(conn: Connection, config: Configuration, mine: Turn) -> tuple[Sequence[str], Look]:
    look = Look(
        fence=mine.fence,
        config_version=config.version,
        position=changes.position(conn),
        whole_at=mine.now,
    )
    return priorities.vos(conn), look


def _is_whole_due(last: Look, config: Configuration, mine: Turn) -> bool:
    return (last.fence, last.config_version) != (
        mine.fence,
        config.version,
    ) or not timedelta() <= mine.now - last.whole_at < INTERVAL


def _weigh(mine: Turn, holders: ShareHolders, families: Families) -> tuple[int, int]:
    """How many task queues of a VO have jobs, and how many of them have another weight now."""
    with database.reading(mine.engine) as conn:
        waiting = priorities.waiting(conn, holders.vo, families)
        weights = holders.weights(conn, [each.demand for each in waiting], now=mine.now)
    different = [
        each
        for each in waiting
        if not isclose(weights[each.demand.task_queue_id], each.weight, rel_tol=_SAME)
    ]
    for start in range(0, len(different), _AT_ONCE):
        with mine.writing() as conn:
            _change(conn, different[start : start + _AT_ONCE], weights, mine.now)
    return len(waiting), len(different)


def _change(
    conn: Connection, different: Sequence[Weighed], weights: Mapping[int, float], now: datetime
) -> None:
    ids = [each.demand.task_queue_id for each in different]
    groups = {each.demand.owner_group for each in different}
    priorities.change(conn, {each: weights[each] for each in ids}, owner_groups=groups, now=now)
