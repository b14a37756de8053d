"""`python -m tests.acceptance.campaign`: a campaign by hand, for as long as one wants."""

import argparse
import json
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance.campaign.run import Plan, run
from tests.debian import FAKETIME

log = logging.getLogger(__name__)


def warn_of_clocks(library: Path) -> None:
    """Log that the fault `clock` is left out, if so."""
    if not library.exists():
        log.warning("clocks are not changed: there is no %s (Debian's libfaketime)", library)


def main() -> int:
    """Run it; 1 if something was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--sqlite", action="store_true", help="one process on SQLite instead of two hosts")
    parser.add_argument(
        "--faults-every", type=float, default=5, metavar="S", help="seconds between two faults"
    )
    parser.add_argument("--changes-every", type=float, default=3, metavar="S", help="of the configuration")
    parser.add_argument("--only", action="append", metavar="KIND", help="a kind of fault; may be repeated")
    parser.add_argument("--backlog", type=int, default=40, metavar="N", help="jobs of each user that wait")
    parser.add_argument("--lost", type=float, default=0.1, metavar="PART", help="of the answers")
    parser.add_argument("--pooler", action="store_true", help="pgbouncer before the database")
    parser.add_argument(
        "--earlier", action="store_true", help="the second host's service is of the last release"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    warn_of_clocks(FAKETIME)
    directory = Path(tempfile.mkdtemp(prefix="campaign-"))
    log.info("seed %d, logs and history in %s", options.seed, directory)
    plan = Plan(
        seed=options.seed,
        seconds=options.minutes * 60,
        directory=directory,
        sqlite=options.sqlite,
        faults_every=options.faults_every,
        changes_every=options.changes_every,
        kinds=frozenset(options.only) if options.only else None,
        backlog=options.backlog,
        pooler=options.pooler,
        earlier=options.earlier,
        lost=options.lost,
    )
    report = run(plan)
    log.info("%s", json.dumps(report.numbers, indent=2))
    for flaw in report.flaws:
        log.error("%s", "\n".join(report.describe(flaw)))
    return int(bool(report.flaws))


if __name__ == "__main__":
    sys.exit(main())
