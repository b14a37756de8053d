"""Main function of a local job on its node."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotage.fabric.pilot.agent import PilotControl
from pilotage.fabric.pilot.payload import work_area
from pilotage.fabric.runner import job_spec
from pilotage.fabric.runner.local_job import LocalJob


def main(archive: Path, words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the local job of a job spec.

    Args:
        archive: The zip archive of the runner, which contains the sandbox.
        words: The file of the job spec.
        environment: Of the batch job.

    Returns:
        The exit status of the payload, 4 if the site is to blame.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    orders = PilotControl()
    orders.listen()
    file = Path(words[0])
    wanted = job_spec.read_spec(file)
    area = work_area.make_work_area(file.parent, job_id=wanted.job_id, epoch=wanted.number)
    try:
        return LocalJob(wanted, archive, environment, orders.stop).run(area)
    finally:
        area.remove()
