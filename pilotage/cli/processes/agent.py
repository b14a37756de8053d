"""`pilotage agent`: the background agents by name, each in a thread."""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import datetime
from functools import partial
from random import Random
from secrets import token_hex
from typing import Annotated, Final

import typer
from sqlalchemy import Engine

from agents import (
    accounting,
    day_record,
    dependencies,
    forecasts,
    leader,
    lost_jobs,
    pools,
    priorities,
    reverts,
    scope_counters,
    sweep,
    wait_times,
)
from agents.retention import retention
from agents.retention.retention import RetentionState
from cs_config import gc_tuning
from cs_config.tree.configuration import Configuration
from pilotage import extensions
from pilotage.cli import engine as cli_engine
from pilotage.cli import options, output, process_setup, settings, wiring
from pilotage.cli.errors import WrongUsage
from pilotage.cli.settings import Settings
from requirements.errors import did_you_mean
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import agent_leases, database


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Shared parts of all agents of a process."""

    engine: Engine
    current: Callable[[], Configuration]
    clock: Callable[[], datetime]  #: time of the database
    blobs: BlobStore
    holder: str  #: unique name of this process
    weighing: priorities.PriorityState = field(default_factory=priorities.PriorityState)
    ended: wait_times.WaitTimesState = field(default_factory=wait_times.WaitTimesState)
    compared: scope_counters.ScopeCountersState = field(default_factory=scope_counters.ScopeCountersState)
    lost: lost_jobs.LostJobsState = field(default_factory=lost_jobs.LostJobsState)
    random: Random = field(default_factory=Random)
    retained: RetentionState = field(default_factory=RetentionState)


#: The cycle of each agent, which returns None if another process holds its lease; `leader.INTERVALS` has
#: how often it runs.
AGENTS: Mapping[str, Callable[[AgentContext, datetime], object]] = {
    "pools": lambda own, now: pools.cycle(own.engine, own.current(), now=now, holder=own.holder),
    "lost-jobs": lambda own, now: lost_jobs.cycle(
        own.engine, own.current(), now=now, holder=own.holder, memory=own.lost
    ),
    "priorities": lambda own, now: priorities.cycle(
        own.engine, own.current(), now=now, holder=own.holder, memory=own.weighing
    ),
    "sweep": lambda own, now: sweep.cycle(own.engine, own.current(), now=now, holder=own.holder),
    "dependencies": lambda own, now: dependencies.cycle(own.engine, now=now, holder=own.holder),
    "reverts": lambda own, now: reverts.cycle(own.engine, own.current(), now=now, holder=own.holder),
    "waits": lambda own, now: wait_times.cycle(own.engine, now=now, holder=own.holder, memory=own.ended),
    "accounting": lambda own, now: accounting.cycle(own.engine, now=now, holder=own.holder),
    "depths": lambda own, now: accounting.sample_depths(
        own.engine, own.current(), now=now, holder=own.holder
    ),
    "day-record": lambda own, now: day_record.cycle(own.engine, now=now, holder=own.holder),
    "forecasts": lambda own, now: forecasts.cycle(
        own.engine, own.current(), now=now, holder=own.holder, random=own.random
    ),
    "scope-counters": lambda own, now: scope_counters.cycle(
        own.engine, own.current(), now=now, holder=own.holder, memory=own.compared
    ),
    "retention": lambda own, now: retention.cycle(
        *(own.engine, own.current()),
        now=now,
        holder=own.holder,
        store=own.blobs,
        memory=own.retained,
        log_readers=extensions.find_log_readers(),
    ),
}


def list_names() -> list[str]:
    """The names of all agents, those of plug-ins behind the program's own."""
    return [*AGENTS, *extensions.list_agents()]


@contextmanager
def open_cycles(
    names: Iterable[str], context: AgentContext, chosen: Settings
) -> Iterator[Mapping[str, Callable[[datetime], object]]]:
    """The function that runs a cycle of each agent; what plug-ins open for theirs is closed at the end."""
    with ExitStack() as stack:
        yield {
            name: partial(AGENTS[name], context)
            if name in AGENTS
            else stack.enter_context(extensions.open_agent(name, context, chosen))
            for name in names
        }


def unique_holder() -> str:
    """A unique name for this process, with its host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"


@contextmanager
def run_agents(names: Sequence[str], context: AgentContext, chosen: Settings) -> Iterator[None]:
    """Run each agent in its own thread until the end of the block.

    All begin at once; their next cycles are spread over the interval, so that they do not fall together.
    """
    intervals = extensions.list_intervals(leader.INTERVALS, with_optional=True)
    same = Counter(intervals[name] for name in names)
    places: Counter[float] = Counter()
    with ExitStack() as stack:
        for name, cycle in stack.enter_context(open_cycles(names, context, chosen)).items():
            every = intervals[name]
            places[every] += 1
            loop = wiring.repeat_in_thread(
                cycle,
                name=name,
                every=every,
                first_pause=every * places[every] / same[every],
                clock=context.clock,
            )
            stack.enter_context(loop)
        yield


@settings.command_with("database_url", "redis_url", "log_level", with_plugins=True)
def agent(
    chosen: Settings,
    *,
    as_json: bool,
    names: Annotated[list[str], options.argument("NAME", f"Agents: {', '.join(list_names())}; or all.")],
    once: Annotated[
        bool, typer.Option("--once", help="Run one cycle of each, print its result, and exit.")
    ] = False,
) -> None:
    """Run background agents: refresh pools, recover lost jobs, find missed jobs, delete old data.

    They can run on several hosts; each agent is active on one of them at a time.

    Example: `pilotage agent all`.
    """
    wanted = _check_names(names)
    process_setup.configure_logs(chosen.log_level, as_json=as_json and not once)
    gc_tuning.collect_seldom()
    with (
        wiring.open_current_engine(chosen) as engine,
        wiring.track_last_seen(chosen, engine),
        wiring.open_notifications(chosen, engine) as notifications,
        wiring.track_clock(engine) as clock,
        wiring.track_configuration(engine, notifications, clock) as live,
    ):
        context = AgentContext(
            engine=engine,
            current=lambda: live.current,
            # Read for each cycle: what an agent decides by it cannot be taken back.
            clock=clock.read,
            blobs=wiring.open_blobs(chosen),
            holder=unique_holder(),
            retained=RetentionState.begin(has_next=not once),
        )
        if once:
            _run_each_once(wanted, context, chosen, as_json=as_json)
        else:
            with run_agents(wanted, context, chosen):
                process_setup.stop_on_signals().wait()


def _check_names(names: list[str]) -> list[str]:
    known = list_names()
    if names == ["all"]:
        return known
    for name in names:
        if name not in known:
            meant = did_you_mean(name, known)
            hint = f", did you mean {meant}?" if meant else f"; there are {', '.join(known)}"
            raise WrongUsage(f"no agent {name}{hint}{extensions.hint_at_absent()}")
    return list(dict.fromkeys(names))


#: Instead of what an agent did: the process that leads it.
_ACTIVE_IN: Final = "active_in"


def _run_each_once(names: list[str], context: AgentContext, chosen: Settings, *, as_json: bool) -> None:
    with (
        cli_engine.translate_unreachable(chosen.database_url),
        open_cycles(names, context, chosen) as cycles,
    ):
        results = {name: cycle(context.clock()) for name, cycle in cycles.items()}
        with database.reading(context.engine) as conn:
            holders = agent_leases.list_holders(conn)
    data: dict[str, dict[str, object]] = {
        name: {_ACTIVE_IN: _find_process(holders.get(name, ""))} if facts is None else facts
        for name, result in results.items()
        for facts in [_facts(result)]
    }
    rows = ((name, _format_facts(facts)) for name, facts in data.items())
    output.emit(data, as_json=as_json, render=lambda: output.table(("Agent", "Did"), rows))


def _find_process(holder: str) -> str:
    """Host and process id of a name of `unique_holder`."""
    return holder.rpartition(":")[0] or holder


def _facts(result: object) -> dict[str, object] | None:
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else None


def _format_facts(facts: dict[str, object]) -> str:
    return (
        ", ".join(f"{name.replace('_', ' ')}: {output.cell(value)}" for name, value in facts.items() if value)
        or "nothing"
    )
