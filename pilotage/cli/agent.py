"""`pilotage agent`: the loops that keep things moving."""

from dataclasses import asdict, is_dataclass
from typing import Annotated

import typer

from cs_config import collector
from pilotage.cli import agents_by_name, databases, logs, options, output, settings, stopping, wiring
from pilotage.cli.agents_by_name import AGENTS, Surroundings
from pilotage.cli.failures import WrongUsage
from pilotage.cli.settings import Settings
from pilotage.service.parts import utc_now
from requirements.suggestion import did_you_mean
from taskqueue.blob_store import DirectoryStore


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
    wanted = _known(names)
    logs.configure(chosen.log_level, as_json=as_json and not once)
    collector.collect_seldom()
    with (
        wiring.opened(chosen) as engine,
        wiring.last_seen(chosen, engine),
        wiring.bell(chosen, engine) as bell,
        wiring.live_configuration(engine, bell) as live,
    ):
        surroundings = Surroundings(
            engine=engine,
            current=lambda: live.current,
            blobs=DirectoryStore(chosen.blobs),
            holder=agents_by_name.holder(),
        )
        if once:
            _once(wanted, surroundings, chosen, as_json=as_json)
        else:
            with agents_by_name.running(wanted, surroundings):
                stopping.on_signals().wait()


def _known(names: list[str]) -> list[str]:
    if names == ["all"]:
        return list(AGENTS)
    for name in names:
        if name not in AGENTS:
            meant = did_you_mean(name, AGENTS)
            hint = f", did you mean {meant}?" if meant else f"; there are {', '.join(AGENTS)}"
            raise WrongUsage(f"no agent {name}{hint}")
    return list(dict.fromkeys(names))


def _once(names: list[str], surroundings: Surroundings, chosen: Settings, *, as_json: bool) -> None:
    with databases.away_in_one_line(chosen.database_url):
        results = {name: agents_by_name.once(name, surroundings, utc_now()) for name in names}
    data = {name: _facts(result) for name, result in results.items()}
    rows = (
        (name, "another process does it" if facts is None else _said(facts)) for name, facts in data.items()
    )
    output.emit(data, as_json=as_json, render=lambda: output.table(("Agent", "Did"), rows))


def _facts(result: object) -> dict[str, object] | None:
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else None


def _said(facts: dict[str, object]) -> str:
    return (
        ", ".join(f"{name.replace('_', ' ')}: {output.cell(value)}" for name, value in facts.items() if value)
        or "nothing"
    )
