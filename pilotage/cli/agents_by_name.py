"""The agents by the names that `pilotage agent` takes, and how often each looks for work."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_hex

from sqlalchemy import Engine

from agents import accounting, lost_jobs, pools, priorities, retention, silence, sweep, waits
from cs_config.configuration import Configuration
from pilotage.cli import wiring
from taskqueue.blob_store import BlobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What agents work with."""

    engine: Engine
    current: Callable[[], Configuration]
    blobs: BlobStore
    holder: str  #: this process, by a name that no other ever has
    weighing: priorities.Memory = field(default_factory=priorities.Memory)
    ended: waits.Memory = field(default_factory=waits.Memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent."""

    every: float  #: seconds between two cycles
    cycle: Callable[[Surroundings, datetime], object]


def _pools(its: Surroundings, now: datetime) -> object:
    return pools.cycle(its.engine, its.current(), now=now, holder=its.holder)


def _lost_jobs(its: Surroundings, now: datetime) -> object:
    return lost_jobs.cycle(its.engine, its.current(), now=now, holder=its.holder)


def _priorities(its: Surroundings, now: datetime) -> object:
    return priorities.cycle(its.engine, its.current(), now=now, holder=its.holder, memory=its.weighing)


def _sweep(its: Surroundings, now: datetime) -> object:
    return sweep.cycle(its.engine, its.current(), now=now, holder=its.holder)


def _retention(its: Surroundings, now: datetime) -> object:
    return retention.cycle(its.engine, its.current(), now=now, holder=its.holder, store=its.blobs)


def _waits(its: Surroundings, now: datetime) -> object:
    return waits.cycle(its.engine, now=now, holder=its.holder, memory=its.ended)


def _accounting(its: Surroundings, now: datetime) -> object:
    return accounting.cycle(its.engine, now=now, holder=its.holder)


_CYCLES: Mapping[str, Callable[[Surroundings, datetime], object]] = {
    "pools": _pools,
    "lost-jobs": _lost_jobs,
    "priorities": _priorities,
    "sweep": _sweep,
    "waits": _waits,
    "accounting": _accounting,
    "retention": _retention,
}
AGENTS: Mapping[str, Agent] = {
    name: Agent(every=every, cycle=_CYCLES[name]) for name, every in silence.EVERY.items()
}


def holder() -> str:
    """A name for this process that no other ever has, and that tells people where it runs."""
    return f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"


@contextmanager
def running(names: Sequence[str], its: Surroundings) -> Iterator[None]:
    """The agents, each in a thread of its own, until the end of the block."""
    with ExitStack() as stack:
        for name in names:
            agent = AGENTS[name]
            stack.enter_context(wiring.repeated(_bound(agent, its), name=name, every=agent.every))
        yield


def once(name: str, its: Surroundings, now: datetime) -> object:
    """One cycle of one agent; what it says about it, None if it is another process's turn."""
    return AGENTS[name].cycle(its, now)


def _bound(agent: Agent, its: Surroundings) -> Callable[[datetime], object]:
    return lambda now: agent.cycle(its, now)
