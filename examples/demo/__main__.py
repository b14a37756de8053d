"""`./dev demo`: on a real grid's resource tree, on a batch system, with DIRAC, or on a cluster."""

import argparse
import signal
import sys

from examples.demo import on_grid
from examples.demo.installation import console


def main() -> int:
    """Run the demonstration that was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="./dev demo", description="Show the whole system.")
    parser.add_argument("--slurm", action="store_true", help="on a real Slurm; takes root on Debian")
    parser.add_argument("--dirac", action="store_true", help="with genuine clients and pilots of DIRAC")
    parser.add_argument(
        "--cluster", action="store_true", help="on three nodes of PostgreSQL under Patroni, with faults"
    )
    parser.add_argument("--install", action="store_true", help="with one of these: install Debian's packages")
    parser.add_argument("--minutes", type=float, metavar="N", help="with --cluster: of faults")
    parser.add_argument("--seed", type=int, metavar="N", help="with --cluster: the order of faults")
    parser.add_argument("--copies", type=int, metavar="N", help="with --slurm: of each kind of job")
    parser.add_argument("--only", action="append", metavar="KIND", help="with --cluster: a kind of fault")
    said = parser.parse_args()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    if said.slurm:
        from examples.demo import on_slurm  # needs what is installed for tests

        return on_slurm.main(copies=said.copies or on_slurm.COPIES, install=said.install)
    if said.dirac:
        from examples.demo import on_dirac

        return on_dirac.main(install=said.install)
    if said.cluster:
        from examples.demo import on_cluster

        kinds = frozenset(said.only) if said.only else None
        return on_cluster.main(minutes=said.minutes, seed=said.seed, kinds=kinds, install=said.install)
    return on_grid.main()


def _end(number: int, _: object) -> None:
    """End by way of all that cleans up, which nothing interrupts again."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    console.print("\nEnding; everything is cleaned up.")
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
