"""Two trees measured in turns: this one and that of a commit, so that both see the same machine.

The other tree is a worktree of git in `build/bench/`, with a virtual environment that its own `./dev` makes.
Each turn runs the benchmark in one tree and then in the other; the next turn begins with the other one.
"""

import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import results

TURNS = 6
_Row = Mapping[str, object]
#: The numbers of each row and column, a number a turn.
_Measured = Mapping[tuple[str, ...], Mapping[str, Sequence[float]]]


def run(names: Sequence[str], commit: str, *, quick: bool, turns: int = TURNS) -> None:
    """Print for each benchmark the medians of both trees, and their ratio: this tree divided by the other.

    Raises:
        subprocess.CalledProcessError: There is no such commit, or a benchmark failed in one of the trees.
    """
    here = Path.cwd()
    with _checked_out(commit) as other:
        for name in names:
            measured: dict[Path, list[list[_Row]]] = {here: [], other: []}
            for turn in range(turns):
                for tree in (here, other) if turn % 2 == 0 else (other, here):
                    measured[tree].append(_measure(tree, name, quick=quick))
            title = f"{name}: this tree and {commit}, medians of {turns} turns"
            results.show(title, list(compare(measured[here], measured[other])))


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit; it stays for the next comparison with it."""
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", f"{commit}^{{commit}}"], check=True, capture_output=True, text=True
    )
    directory = (results.DIRECTORY / "trees" / found.stdout.strip()).resolve()
    if not directory.exists():
        subprocess.run(["git", "worktree", "prune"], check=True)
        subprocess.run(["git", "worktree", "add", "--detach", directory, commit], check=True)
    yield directory


def _measure(tree: Path, name: str, *, quick: bool) -> list[_Row]:
    """Run a benchmark in a tree by its own `./dev`; return its rows."""
    # A script of the other tree must find that tree's environment, not the one that we run in.
    environment = {
        key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "PYTHONPATH"}
    }
    environment["PATH"] = os.pathsep.join(
        entry for entry in os.environ["PATH"].split(os.pathsep) if not entry.endswith(".venv/bin")
    )
    command = ["./dev", "bench", name, *(["--quick"] if quick else [])]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    kept = json.loads((tree / results.DIRECTORY / f"{name}.json").read_text())
    return [result["values"] for result in kept["results"]]


def compare(here: Sequence[Sequence[_Row]], other: Sequence[Sequence[_Row]]) -> Iterator[_Row]:
    """A line for each number that both trees measured; what is the same in all turns is left out."""
    ours, theirs = _collect(here), _collect(other)
    for row, columns in ours.items():
        for column, numbers in columns.items():
            others = theirs.get(row, {}).get(column, ())
            if not others or {*numbers} | {*others} == {numbers[0]}:
                continue
            one, two = median(numbers), median(others)
            yield {
                "what": " · ".join((*filter(None, row), column)),
                "this tree": f"{one:,.6g}",
                "the other": f"{two:,.6g}",
                "ratio": f"{one / two:.2f}" if two else "–",
            }


def _collect(turns: Sequence[Sequence[_Row]]) -> _Measured:
    """The numbers by row, which its texts name, and column; rows with equal texts are counted."""
    found: defaultdict[tuple[str, ...], defaultdict[str, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    for rows in turns:
        seen = Counter[tuple[str, ...]]()
        for row in rows:
            texts = tuple(str(value) for value in row.values() if isinstance(value, str))
            seen[texts] += 1
            name = (*texts, str(seen[texts]) if seen[texts] > 1 else "")
            for column, value in row.items():
                if isinstance(value, int | float):
                    found[name][column].append(value)
    return found
