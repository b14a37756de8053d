"""A worker process whose step Requirements takes its time, to be killed in the middle of a batch."""

import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest

from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, JobContext, Outcome
from optimizers.steps.job_scheduling import resolve_requirements
from optimizers.workers import rq
from taskqueue.db import notify
from tests.support import databases


def main(database_url: str, redis_url: str, marker: Path) -> None:
    """Work; a job makes the marker and waits as long as there is a file `slow` beside it."""

    def slow(candidate: JobContext, context: ChainContext) -> Outcome:
        marker.touch()
        while (marker.parent / "slow").exists():
            time.sleep(0.02)
        return resolve_requirements(candidate, context)

    ours = {**chain.installed_steps(), "Requirements": slow}
    chain.installed_steps = lambda: MappingProxyType(ours)  # type: ignore[assignment]
    databases.wait_patiently(pytest.MonkeyPatch())
    rq._TIMEOUT = notify._TIMEOUT = 300.0  # type: ignore[misc]  # however slow the machine is
    rq.run_worker(database_url, redis_url)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
