"""One line of a benchmark, the table of all, and the file that keeps them."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

_DIRECTORY = Path("build/bench")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured once, and whatever was wrong afterwards in the tables."""

    values: dict[str, str | float]
    flaws: list[str] = field(default_factory=list)


def show(name: str, results: Sequence[Result]) -> None:
    """Print the table of a benchmark."""
    columns = list(dict.fromkeys(column for result in results for column in result.values))
    table = Table(title=name)
    for column in columns:
        table.add_column(column, justify="left" if column == "what" else "right")
    for result in results:
        table.add_row(*(str(result.values.get(column, "")) for column in columns))
    Console().print(table)


def keep(name: str, results: Sequence[Result]) -> Path:
    """Write the results as JSON, with the machine that they are of."""
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = _DIRECTORY / f"{name}.json"
    kept = {
        "benchmark": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.platform(),
        "python": platform.python_version(),
        "results": [result.values for result in results],
    }
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return path
