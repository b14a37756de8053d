"""A job manager as a process.

`python -m tests.support.scripts.job_manager DIRECTORY` goes on until it is killed.
"""

import sys
import time
from pathlib import Path

from pilotage.fabric.batch.local_host import LocalHost
from tests.support.factories.grid_jobs import Site


def site(directory: Path) -> Site:
    """The same site for whoever manages it."""
    shared = directory / "shared"
    system = LocalHost(directory=str(shared / "batch"), cores=4, memory=8000)
    return Site(directory=directory, system=system, shared=shared, habits={"max_jobs_per_cycle": 1})


def main(directory: Path) -> None:
    manager = site(directory).manager()
    while True:
        manager.advance()
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
