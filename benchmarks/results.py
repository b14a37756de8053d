"""One line of a benchmark, the table of all, the file that keeps them, and quantiles of times."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine

DIRECTORY = Path("build/bench")
_WIDE = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A dot of a plot; dots of one line are joined."""

    plot: str  #: name of the plot, one of `plots.PLOTS`
    line: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured once, and whatever was wrong afterwards in the tables."""

    values: dict[str, str | float]
    flaws: list[str] = field(default_factory=list)  #: jobs that were doubled or lost
    targets: dict[str, float] = field(default_factory=dict)  #: names of `targets.TARGETS` to what it was
    note: str = ""  #: under what conditions, where they are not the target's own
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """All of one benchmark, as it was written."""

    name: str
    about: Mapping[str, Any]  #: when, where, of which commit, how long it took
    results: Sequence[Result]


def table(name: str, results: Sequence[Mapping[str, object]]) -> Table:
    """Rows with all columns that one of them has."""
    shown = Table(title=name)
    for column in columns(results):
        shown.add_column(column, justify="left" if column == "what" else "right")
    for row in rows(results):
        shown.add_row(*row)
    return shown


def columns(results: Sequence[Mapping[str, object]]) -> list[str]:
    """The columns of a table, in the order in which they turn up first."""
    return list(dict.fromkeys(column for result in results for column in result))


def rows(results: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """The cells of a table."""
    return [[_cell(result.get(column, "")) for column in columns(results)] for result in results]


def show(name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table; as wide as it needs where no terminal says otherwise."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table(name, rows))


def keep(name: str, results: Sequence[Result], *, quick: bool, seconds: float) -> Path:
    """Write the results as JSON, with the machine and the commit that they are of."""
    about = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": quick,
        "seconds": round(seconds),
        **machine.described(),
    }
    kept = {"benchmark": name, "about": about, "results": [asdict(result) for result in results]}
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / f"{name}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def load(name: str) -> Kept | None:
    """What was written last; None: that benchmark has not been run here."""
    path = DIRECTORY / f"{name}.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    return Kept(name=name, about=kept["about"], results=[_read(result) for result in kept["results"]])


def _read(kept: dict[str, Any]) -> Result:
    return Result(**{**kept, "points": [Point(**point) for point in kept["points"]]})


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not go beyond; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
