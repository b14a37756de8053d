"""`./dev bench [NAME…] [--quick] [--prototype DIRECTORY] [--against COMMIT] [--page]`."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import (
    against,
    cost,
    director,
    door,
    explain,
    expressions,
    foresight,
    growth,
    hostile,
    look,
    match,
    mixed,
    nothing,
    page,
    plots,
    pools,
    results,
    spec,
    submit,
    targets,
    walks,
    wlcg,
    worst,
)
from benchmarks.results import Result

Run = Callable[..., Iterator[Result]]
BENCHMARKS: Mapping[str, Run] = {
    "match": match.run,
    "growth": growth.run,
    "spec": spec.run,
    "nothing": nothing.run,
    "submit": submit.run,
    "pools": pools.run,
    "mixed": mixed.run,
    "wlcg": wlcg.run,
    "cost": cost.run,
    "explain": explain.run,
    "expressions": expressions.run,
    "look": look.run,
    "director": director.run,
    "door": door.run,
    "worst": worst.run,
    "hostile": hostile.run,
}
#: What is counted, not measured, and is the same on any machine: it has no section on the page of benchmarks.
COUNTS: Mapping[str, Run] = {"walks": walks.run, "foresight": foresight.run}
_ALL = {**BENCHMARKS, **COUNTS}


def main() -> int:
    """Run the benchmarks named, or all; 1 if one found a job doubled or lost. A missed target is no error."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers are stopped then
    console, flaws = Console(stderr=True), 0
    names = options.names or list(_ALL)
    if options.against:
        against.run(names, options.against, quick=options.quick, turns=options.turns)
    elif not options.page:
        runs: Mapping[str, Run] = {**_ALL, "spec": partial(spec.run, prototype_tree=options.prototype)}
        measured = {name: _measured(console, name, runs[name], quick=options.quick) for name in names}
        flaws = sum(_told(console, name, found) for name, found in measured.items())
        _judge([result for found in measured.values() for result in found], names)
    else:
        page.rewrite(list(BENCHMARKS))
        console.print(f"written: {page.PAGE}")
    return int(flaws > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_ALL)}; else all")
    parser.add_argument("--quick", action="store_true", help="smaller populations, fewer rounds")
    parser.add_argument(
        "--prototype",
        metavar="DIRECTORY",
        type=Path,
        help="spec: a tree of poc-dirac-job-matchmaking, whose matcher is measured as well",
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="measure the tree of a commit as well, in turns; print the ratios"
    )
    parser.add_argument(
        "--turns", type=int, default=against.TURNS, help="with --against: how often (default: %(default)s)"
    )
    parser.add_argument(
        "--page", action="store_true", help="measure nothing; put the last results into the documentation"
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - _ALL.keys()):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(_ALL)}")
    return options


def _measured(console: Console, name: str, run: Run, *, quick: bool) -> list[Result]:
    """Run one, say what comes as it comes, and keep it."""
    found: list[Result] = []
    began = time.monotonic()
    with console.status(f"{name}…") as status:
        for result in run(quick=quick):
            found.append(result)
            console.print(" · ".join(f"{key} {value}" for key, value in result.values.items()))
            status.update(f"{name}: {len(found)} measured in {time.monotonic() - began:.0f} s…")
    results.show(name, [result.values for result in found])
    path = results.keep(name, found, quick=quick, seconds=time.monotonic() - began)
    drawn = plots.draw(point for result in found for point in result.points)
    console.print(f"{time.monotonic() - began:.0f} s; written: {', '.join(map(str, [path, *drawn]))}")
    return found


def _told(console: Console, name: str, found: Sequence[Result]) -> int:
    flaws = [flaw for result in found for flaw in result.flaws]
    for flaw in flaws:
        console.print(f"[red]{name}: {flaw}")
    return len(flaws)


def _judge(found: Sequence[Result], names: Sequence[str]) -> None:
    rows = [verdict.row() for verdict in targets.verdicts(found, names)]
    if rows:
        results.show("targets", rows)


if __name__ == "__main__":
    sys.exit(main())
