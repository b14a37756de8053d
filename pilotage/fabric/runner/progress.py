"""How far a payload is, phase by phase, in its own words: `generated 117 of 250 events`.

Nothing that a payload writes is believed to be sensible: what is no such line is passed over, and there is a
bound to everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Phases of one job that are kept.
MOST_PHASES = 16
#: Larger numbers are nobody's events.
LARGEST = 10**12
_LINE = re.compile(
    r"(?P<name>[A-Za-z][\w .:/+-]{0,39}?):? +(?P<done>\d{1,13}) of (?P<of>\d{1,13})(?: .*)?", re.ASCII
)


@dataclass(frozen=True)
class Progress:
    """One phase of a payload."""

    name: str
    done: int
    of: int

    def __str__(self) -> str:
        return f"{self.name} {self.done} of {self.of}"


def read_progress(text: str, before: Iterable[Progress] = ()) -> tuple[Progress, ...]:
    """What the lines of a payload say; the last line of a phase holds.

    Args:
        text: Lines; the rest of what a payload wrote may be missing.
        before: What earlier lines said.
    """
    found = {each.name: each for each in before}
    for line in text.split("\n"):
        said = _LINE.fullmatch(line.strip())
        if said is None:
            continue
        progress = _bounded(said["name"].strip(), int(said["done"]), int(said["of"]))
        if progress.name in found or len(found) < MOST_PHASES:
            found[progress.name] = progress
    return tuple(found.values())


def progress_from_status(raw: object) -> tuple[Progress, ...]:
    """What a mark says, which somebody else may have written.

    Args:
        raw: `[[name, done, of], …]`, as JSON; anything else is passed over.
    """
    rows = raw if isinstance(raw, list) else []
    lines = [
        f"{row[0]} {row[1]} of {row[2]}"
        for row in rows[:MOST_PHASES]
        if isinstance(row, list) and len(row) == 3
    ]
    return read_progress("\n".join(line.replace("\n", " ") for line in lines))


def summed(each: Iterable[tuple[Progress, ...]], missing: Mapping[str, int]) -> tuple[Progress, ...]:
    """The progress of several jobs together.

    Args:
        each: Of every job that said something.
        missing: By phase, the units of those that have not said anything of it yet.
    """
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


def _bounded(name: str, done: int, of: int) -> Progress:
    of = min(of, LARGEST)
    return Progress(name=name, done=min(done, of), of=of)
