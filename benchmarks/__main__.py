"""`./dev bench [NAME…] [--quick]`."""

import argparse
import sys

from rich.console import Console

from benchmarks import explain, match, nothing, results

BENCHMARKS = {"explain": explain.run, "match": match.run, "nothing": nothing.run}


def main() -> int:
    """Run the benchmarks named, or all; 1 if one found a job doubled or lost."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="smaller populations, fewer rounds")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - BENCHMARKS.keys()):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    console, flawed = Console(stderr=True), False
    for name in options.names or BENCHMARKS:
        measured = []
        with console.status(f"{name}…"):
            for result in BENCHMARKS[name](quick=options.quick):
                measured.append(result)
                console.print(result.values)
        results.show(name, measured)
        console.print(f"written to {results.keep(name, measured)}")
        for flaw in (flaw for result in measured for flaw in result.flaws):
            console.print(f"[red]{flaw}")
            flawed = True
    return int(flawed)


if __name__ == "__main__":
    sys.exit(main())
