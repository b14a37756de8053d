"""The agents by the names that `pilotage agent` takes, and how often each looks for work.

`pilotage agent`: the loops that keep things moving.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import datetime
from secrets import token_hex
from typing import Annotated

import typer
from sqlalchemy import Engine

from agents import accounting, lost_jobs, pools, priorities, retention, schedule, sweep, wait_times
from cs_config import gc_tuning
from cs_config.tree.configuration import Configuration
from pilotage.cli import engine as cli_engine
from pilotage.cli import options, output, process_setup, settings, wiring
from pilotage.cli.errors import WrongUsage
from pilotage.cli.settings import Settings
from pilotage.service.services import utc_now
from requirements.errors import did_you_mean
from taskqueue.blobs import BlobStore, DirectoryBlobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What agents work with."""

    engine: Engine
    current: Callable[[], Configuration]
    blobs: BlobStore
    holder: str  #: this process, by a name that no other ever has
    weighing: priorities.PriorityState = field(default_factory=priorities.PriorityState)
    ended: wait_times.WaitTimesState = field(default_factory=wait_times.WaitTimesState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent."""

    every: float  #: seconds between two cycles
    cycle: Callable[[AgentContext, datetime], object]


def _run_pools(its: AgentContext, now: datetime) -> object:
    return pools.cycle(its.engine, its.current(), now=now, holder=its.holder)


def _run_lost_jobs(its: AgentContext, now: datetime) -> object:
    return lost_jobs.cycle(its.engine, its.current(), now=now, holder=its.holder)


def _run_priorities(its: AgentContext, now: datetime) -> object:
    return priorities.cycle(its.engine, its.current(), now=now, holder=its.holder, memory=its.weighing)


def _run_sweep(its: AgentContext, now: datetime) -> object:
    return sweep.cycle(its.engine, its.current(), now=now, holder=its.holder)


def _run_retention(its: AgentContext, now: datetime) -> object:
    return retention.cycle(its.engine, its.current(), now=now, holder=its.holder, store=its.blobs)


def _run_waits(its: AgentContext, now: datetime) -> object:
    return wait_times.cycle(its.engine, now=now, holder=its.holder, memory=its.ended)


def _run_accounting(its: AgentContext, now: datetime) -> object:
    return accounting.cycle(its.engine, now=now, holder=its.holder)


_CYCLES: Mapping[str, Callable[[AgentContext, datetime], object]] = {
    "pools": _run_pools,
    "lost-jobs": _run_lost_jobs,
    "priorities": _run_priorities,
    "sweep": _run_sweep,
    "waits": _run_waits,
    "accounting": _run_accounting,
    "retention": _run_retention,
}
AGENTS: Mapping[str, Agent] = {
    name: Agent(every=every, cycle=_CYCLES[name]) for name, every in schedule.INTERVALS.items()
}


def unique_holder() -> str:
    """A name for this process that no other ever has, and that tells people where it runs."""
    return f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"


@contextmanager
def run_agents(names: Sequence[str], its: AgentContext) -> Iterator[None]:
    """The agents, each in a thread of its own, until the end of the block."""
    with ExitStack() as stack:
        for name in names:
            agent = AGENTS[name]
            stack.enter_context(wiring.repeat_in_thread(_bound(agent, its), name=name, every=agent.every))
        yield


def run_once(name: str, its: AgentContext, now: datetime) -> object:
    """One cycle of one agent; what it says about it, None if it is another process's turn."""
    return AGENTS[name].cycle(its, now)


def _bound(agent: Agent, its: AgentContext) -> Callable[[datetime], object]:
    return lambda now: agent.cycle(its, now)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agent")(agent)


def agent(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help=f"Of {', '.join(AGENTS)}; or all.")],
    *,
    once: Annotated[
        bool, typer.Option("--once", help="One cycle of each, tell what it did, and end.")
    ] = False,
    database_url: options.DatabaseUrl = None,
    redis_url: options.RedisUrl = None,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Run agents: pools fresh, lost jobs back, missed jobs found, old rows gone.

    May run on several hosts; each agent's work is done by one of them at a time.
    """
    flags = {"home": home, "database_url": database_url, "redis_url": redis_url, "log_level": log_level}
    chosen = settings.load(flags)
    wanted = _check_names(names)
    process_setup.configure_logs(chosen.log_level, as_json=as_json and not once)
    gc_tuning.collect_seldom()
    with (
        wiring.open_current_engine(chosen) as engine,
        wiring.track_last_seen(chosen, engine),
        wiring.open_notifications(chosen, engine) as bell,
        wiring.track_configuration(engine, bell) as live,
    ):
        surroundings = AgentContext(
            engine=engine,
            current=lambda: live.current,
            blobs=DirectoryBlobStore(chosen.blobs),
            holder=unique_holder(),
        )
        if once:
            _run_each_once(wanted, surroundings, chosen, as_json=as_json)
        else:
            with run_agents(wanted, surroundings):
                process_setup.stop_on_signals().wait()


def _check_names(names: list[str]) -> list[str]:
    if names == ["all"]:
        return list(AGENTS)
    for name in names:
        if name not in AGENTS:
            meant = did_you_mean(name, AGENTS)
            hint = f", did you mean {meant}?" if meant else f"; there are {', '.join(AGENTS)}"
            raise WrongUsage(f"no agent {name}{hint}")
    return list(dict.fromkeys(names))


def _run_each_once(names: list[str], surroundings: AgentContext, chosen: Settings, *, as_json: bool) -> None:
    with cli_engine.translate_unreachable(chosen.database_url):
        results = {name: run_once(name, surroundings, utc_now()) for name in names}
    data = {name: _facts(result) for name, result in results.items()}
    rows = (
        (name, "another process does it" if facts is None else _format_facts(facts))
        for name, facts in data.items()
    )
    output.emit(data, as_json=as_json, render=lambda: output.table(("Agent", "Did"), rows))


def _facts(result: object) -> dict[str, object] | None:
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else None


def _format_facts(facts: dict[str, object]) -> str:
    return (
        ", ".join(f"{name.replace('_', ' ')}: {output.cell(value)}" for name, value in facts.items() if value)
        or "nothing"
    )
