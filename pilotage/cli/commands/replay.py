"""`pilotage replay`: what a recorded day would have been with another configuration."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from sqlalchemy import Engine

from cs_config import validate
from cs_config.editing import patch, proposals
from cs_config.editing.patch import BulkEdit
from cs_config.editing.permissions import Rights
from cs_config.errors import PathNotFound
from cs_config.tree.configuration import Configuration
from pilotage.cli import engine as cli_engine
from pilotage.cli import options, output, process_setup, settings
from pilotage.cli.commands.config import edit
from pilotage.cli.errors import WrongUsage
from pilotage.cli.settings import Settings
from pilotage.replay import comparison, recorded_day, replay_database
from pilotage.replay.comparison import ComparedFigure, Figure
from pilotage.replay.recorded_day import RecordedDay
from pilotage.replay.simulation import ReplayedDay, Simulation
from pilotage.service.models.jobs import parse_moment
from requirements.errors import InvalidInput, format_count
from requirements.job_fields import MOMENT
from taskqueue.db import clock

#: Seconds between two lines of progress.
_EVERY = 10.0
_OPERATOR = Rights(everything=True)

Change = Callable[[Configuration], Configuration]


@settings.command_with("database_url")
def replay(
    chosen: Settings,
    *,
    as_json: bool,
    since: Annotated[str, options.option("TIME", f"Begin: {MOMENT}.", "--from")] = "1d",
    lasting: Annotated[str, options.duration_option("How long: 90m, 6h, 1d …, at most 7d.", "--for")] = "1d",
    file: Annotated[
        Path | None,
        options.option("FILE", "Replay it with this configuration, too.", "--config"),
    ] = None,
    edits: Annotated[
        list[str] | None,
        options.option(
            "PATH=VALUE", "Replay it with this value, too, as `config set` takes it; repeatable.", "--set"
        ),
    ] = None,
    within: Annotated[str, options.duration_option("Give up after so long: 90m, 2h ….", "--within")] = "2h",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of all draws: other numbers, other luck.")
    ] = 0,
) -> None:
    """Replay a recorded day, as it was and with another configuration, and compare. Changes nothing.

    The matcher of the program hands out the jobs of the day again, to the slots that were there. How far the
    replay of the day as it was is from what was recorded is its error: a smaller effect is shown as none.

    Example: `pilotage replay --from 2026-03-28 --for 1d --set Operations/lhcb/JobScheduling/Scarcity=owner`.
    """
    if file is not None and edits:
        raise WrongUsage("--config and --set exclude each other")
    change = _find_change(file, [edit.parse_edit(word) for word in edits or ()])
    deadline = time.monotonic() + options.parse_duration(within)
    now = clock.utc_now()
    begin = parse_moment("from", since, now)
    end = begin + timedelta(seconds=options.parse_duration(lasting))
    with cli_engine.open_engine(chosen.database_url) as engine:
        day = recorded_day.read_day(engine, begin=begin, end=end, now=now)
    if change is not None:
        for _, config in day.configurations:
            change(config)  # an error of it is known at once
    found = comparison.compare(day, *_replay(day, change, seed, deadline))
    for what, number in sorted(day.left_out.items()):
        output.warn(f"left out: {number:,} {what}")
    output.emit(_to_json(day, found), as_json=as_json, render=lambda: _render(day, found))


def _find_change(file: Path | None, edits: Sequence[BulkEdit]) -> Change | None:
    """What makes the changed configuration of each that was in force."""
    if file is not None:
        config = validate.load_file(file)
        return lambda _: config
    if not edits:
        return None

    def apply(config: Configuration) -> Configuration:
        try:
            values = patch.expand_edits(config, edits, {}, ())
            if not values:
                return config
            read = patch.read_edits(values)
            return proposals.propose_edits(config, config, read, _OPERATOR).after
        except (InvalidInput, PathNotFound) as error:
            raise WrongUsage(f"version {config.version} of the configuration: {error}") from error

    return apply


def _replay(day: RecordedDay, change: Change | None, seed: int, deadline: float) -> Sequence[ReplayedDay]:
    """The day as it was, and, at the same time in a process of its own, with a change."""
    with process_setup.interrupted_by_signals():
        if change is None:
            return [_run(day, "as it was", None, seed, deadline)]
        with process_setup.compute_beside(lambda: _run(day, "changed", change, seed, deadline)) as wait:
            return [_run(day, "as it was", None, seed, deadline), wait()]


def _run(day: RecordedDay, what: str, change: Change | None, seed: int, deadline: float) -> ReplayedDay:
    told = time.monotonic()

    def progress(part: float) -> None:
        nonlocal told
        if time.monotonic() >= told + _EVERY:
            told = time.monotonic()
            output.progress_console().print(f"{what}: {100 * part:.0f} % of the time is replayed")

    with replay_database.open_database() as engine:
        return _simulate(engine, day, change, seed, progress, deadline)


def _simulate(
    engine: Engine,
    day: RecordedDay,
    change: Change | None,
    seed: int,
    progress: Callable[[float], None],
    deadline: float,
) -> ReplayedDay:
    own = {} if change is None else {"change": change}
    return Simulation(engine, day, seed=seed, progress=progress, deadline=deadline, **own).run()


def _to_json(day: RecordedDay, found: Sequence[ComparedFigure]) -> Mapping[str, Any]:
    return {
        "from": day.begin.isoformat(),
        "to": day.end.isoformat(),
        "jobs": len(day.stays),
        "slots": len(day.slots),
        "left_out": dict(day.left_out),
        "figures": [
            asdict(each) | {"figure": each.figure.value, "error": each.error, "effect": each.effect}
            for each in found
        ],
    }


def _render(day: RecordedDay, found: Sequence[ComparedFigure]) -> RenderableType:
    changed = ("#Changed", "#Effect") if any(each.changed is not None for each in found) else ()
    headings = ("By", "Name", "Figure", "#Recorded", "#Replayed", "#Error", *changed)
    times = f"{day.begin:%Y-%m-%d %H:%M} – {day.end:%Y-%m-%d %H:%M} UTC"
    title = f"{times}, {format_count(len(day.stays), 'job')}, {format_count(len(day.slots), 'slot')}"
    return output.table(headings, map(_list_cells, found), title=title)


def _list_cells(each: ComparedFigure) -> Sequence[object]:
    shown = _SHOWN[each.figure]
    cells = [each.by, each.name, each.figure.value, *map(shown, (each.recorded, each.replayed, each.error))]
    if each.changed is None:
        return cells
    amount = shown(abs(each.effect or 0.0))
    if each.effect is None or amount == shown(0.0):
        return [*cells, shown(each.changed), "none"]
    return [*cells, shown(each.changed), ("+" if each.effect > 0 else "-") + amount]


def _show_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


_SHOWN: Mapping[Figure, Callable[[float], str]] = {
    Figure.P50: _show_seconds,
    Figure.P90: _show_seconds,
    Figure.STARTS: "{:.0f}".format,
    Figure.IDLE: "{:.1f}".format,
}
