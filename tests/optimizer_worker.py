"""A worker process whose step Requirements takes its time, to be killed in the middle of a batch."""

import sys
import time
from pathlib import Path
from types import MappingProxyType

from optimizers import plugins, worker
from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.outcome import Outcome
from optimizers.requirements_step import resolve_requirements


def main(database_url: str, redis_url: str, marker: Path) -> None:
    """Work; a job makes the marker and waits as long as there is a file `slow` beside it."""

    def slow(candidate: Candidate, context: Context) -> Outcome:
        marker.touch()
        while (marker.parent / "slow").exists():
            time.sleep(0.02)
        return resolve_requirements(candidate, context)

    ours = {**plugins.installed(), "Requirements": slow}
    plugins.installed = lambda: MappingProxyType(ours)  # type: ignore[assignment]
    worker.run(database_url, redis_url)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
