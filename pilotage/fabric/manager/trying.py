"""What becomes of a local job that failed: tried again, or given up."""

from dataclasses import replace

from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.station import Habits, Retries
from pilotage.fabric.pilot.report import Report
from pilotage.fabric.runner.marks import PAYLOAD, SITE


def failed(job: LocalJob, cause: str, said: Report, entry: Entry, habits: Habits) -> tuple[LocalJob, str]:
    """The local job as it is to stand now, and a line for the log.

    Args:
        job: As it stood.
        cause: Who has to answer for it, as in `runner.marks`.
        said: How it ended.
        entry: Of its grid job.
        habits: With the policy of retries.
    """
    why = ": ".join(filter(None, (said.minor_status, said.application_status))) or "ended without a word"
    line = f"local job {job.number}, try {job.tries} ({job.stamp}): {why}"
    if entry.cancelled:
        return replace(job, state=LocalState.KILLED, exit_code=said.exit_code, message=why), f"{line}; killed"
    if _is_tried_again(job, cause, habits.retries):
        return replace(job.again(), message=why), f"{line}; it is tried again"
    return replace(job, state=LocalState.FAILED, exit_code=said.exit_code, message=why), f"{line}; given up"


def _is_tried_again(job: LocalJob, cause: str, retries: Retries) -> bool:
    if job.tries >= retries.tries:
        return False
    return cause == SITE or (cause == PAYLOAD and retries.exit_codes)
