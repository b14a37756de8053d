"""`python -m tests.acceptance.fuzzing`: as many hostile inputs as one wants."""

import argparse
import logging
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from tests.acceptance.fuzzing import interface, parsers
from tests.acceptance.fuzzing.mutations import Flaw
from tests.acceptance.fuzzing.parsers import Parser

log = logging.getLogger(__name__)

#: Bytes of memory, beside what libraries take, of the process that parses.
_MEMORY = 2 << 30


def main() -> int:
    """Try them; 1 if there is a flaw."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.fuzzing", description=__doc__)
    parser.add_argument("--parsers", type=int, default=0, metavar="N", help="inputs, shared by the parsers")
    parser.add_argument(
        "--requests", type=int, default=0, metavar="N", help="requests to a service on SQLite"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", action="append", metavar="PARSER", help="may be repeated; default: all")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first input to be tried")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log.info("seed %d", options.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    flaws = 0
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as name:
        directory = Path(name)
        chosen = [
            each for each in parsers.list_parsers(directory) if each.name in (options.only or [each.name])
        ]
        for each in chosen if options.parsers else ():
            inputs = options.first + -(-options.parsers // len(chosen))
            for ended in try_apart(each, range(options.first, inputs), options.seed):
                flaws += ended
        if options.requests:
            flaws += _log_all(
                interface.find_flaws(
                    range(options.first, options.first + options.requests), seed=options.seed
                )
            )
    return int(flaws > 0)


def _log_all(found: Iterator[Flaw]) -> int:
    flaws = 0
    for flaw in found:
        log.error("%s", flaw)
        flaws += 1
    return flaws


def try_apart(parser: Parser, numbers: range, seed: int) -> Iterator[int]:
    """Numbers of flaws, found in a process of bounded memory, and in a new one where an input ends it."""
    context = multiprocessing.get_context("fork")
    at: Synchronized[int] = context.Value("q", numbers.start)
    flaws: Synchronized[int] = context.Value("q", 0)
    first = numbers.start
    while first < numbers.stop:
        arguments = (parser, range(first, numbers.stop), seed, at, flaws)
        child = context.Process(target=_try_here, args=arguments)
        child.start()
        child.join()
        if not child.exitcode:
            break
        number = at.value
        how = signal.Signals(-child.exitcode).name if child.exitcode < 0 else f"status {child.exitcode}"
        log.error(
            "%s", Flaw(parser.name, number, parsers.make_input(parser, seed, number), f"ended by {how}")
        )
        yield 1
        first = number + 1
    yield flaws.value


def _try_here(
    parser: Parser, numbers: range, seed: int, at: "Synchronized[int]", flaws: "Synchronized[int]"
) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    counts: Counter[str] = Counter()

    def note(number: int) -> None:
        at.value = number

    began = time.monotonic()
    flaws.value += _log_all(parsers.find_flaws(parser, numbers, seed=seed, note=note, counts=counts))
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    log.info("%s: %d inputs in %.0f s: %s", parser.name, counts.total(), time.monotonic() - began, kinds)


if __name__ == "__main__":
    sys.exit(main())
