"""Progress of a payload by phase, from the lines that it writes: `generated 117 of 250 events`.

A payload's output is not trusted: other lines are ignored, and sizes are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Maximum phases of one job.
MOST_PHASES = 16
#: Maximum number of units.
LARGEST = 10**12
_LINE = re.compile(
    r"(?P<name>[A-Za-z][\w .:/+-]{0,39}?):? +(?P<done>\d{1,13}) of (?P<of>\d{1,13})(?: .*)?", re.ASCII
)


@dataclass(frozen=True)
class Progress:
    """Progress of one phase."""

    name: str
    done: int
    of: int

    def __str__(self) -> str:
        return f"{self.name} {self.done} of {self.of}"


def read_progress(text: str, before: Iterable[Progress] = ()) -> tuple[Progress, ...]:
    """Read the progress from a payload's lines, added to `before`; the last line of a phase counts."""
    found = {each.name: each for each in before}
    for line in text.split("\n"):
        said = _LINE.fullmatch(line.strip())
        if said is None:
            continue
        of = min(int(said["of"]), LARGEST)
        progress = Progress(name=said["name"].strip(), done=min(int(said["done"]), of), of=of)
        if progress.name in found or len(found) < MOST_PHASES:
            found[progress.name] = progress
    return tuple(found.values())


def progress_from_status(raw: object) -> tuple[Progress, ...]:
    """Read the progress from a status file, which is not trusted: `[[name, done, of], …]`."""
    rows = raw if isinstance(raw, list) else []
    lines = [
        f"{row[0]} {row[1]} of {row[2]}"
        for row in rows[:MOST_PHASES]
        if isinstance(row, list) and len(row) == 3
    ]
    return read_progress("\n".join(line.replace("\n", " ") for line in lines))


def summed(each: Iterable[tuple[Progress, ...]], missing: Mapping[str, int]) -> tuple[Progress, ...]:
    """Sum up the progress of several jobs; `missing` are the units of jobs that have not reported one."""
    done: dict[str, int] = {}
    of: dict[str, int] = {}
    for phases in each:
        for phase in phases:
            done[phase.name] = done.get(phase.name, 0) + phase.done
            of[phase.name] = of.get(phase.name, 0) + phase.of
    return tuple(
        Progress(name=name, done=done[name], of=of[name] + missing.get(name, 0))
        for name in list(done)[:MOST_PHASES]
    )
