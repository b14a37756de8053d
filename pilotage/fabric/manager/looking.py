"""What a look at a local job makes of it: the batch system's word, and the marks that the job left itself."""

from dataclasses import dataclass, replace

from pilotage.fabric.batch.batch_system import Report as Lookup
from pilotage.fabric.batch.batch_system import State
from pilotage.fabric.manager import trying
from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.station import Habits
from pilotage.fabric.pilot.report import DONE, Report
from pilotage.fabric.runner import marks
from pilotage.fabric.runner.marks import SITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A local job at one look."""

    job: LocalJob
    lookup: Lookup
    news: str = ""  #: mark, as it was read
    end: str = ""  #: mark, as it was read


def judged(seen: Seen, entry: Entry, habits: Habits) -> tuple[LocalJob, str]:
    """The local job as it stands now, and a line for the log, empty if nothing is to be said.

    *Unknown* changes nothing, and *missing* only if the job's own mark says that it ended.
    """
    job, state = _with_news(seen), seen.lookup.state
    if state is State.UNKNOWN or (state is State.MISSING and not seen.end):
        return job, ""
    if state is State.WAITING:
        return _alive(job, LocalState.WAITING)
    if state is State.RUNNING:
        return _alive(job, LocalState.RUNNING)
    if state is State.GONE and not seen.end and job.state is LocalState.INTENDED:
        return _never_there(job, entry)
    return _ended(seen, job, entry, habits)


def _with_news(seen: Seen) -> LocalJob:
    job = seen.job
    if seen.lookup.reference is not None and job.reference is None:
        job = replace(job, reference=seen.lookup.reference, was_submitted=True)
    if not seen.news:
        return job
    progress, tail = marks.read_news(seen.news)
    return replace(job, progress=progress or job.progress, tail=tail)


def _alive(job: LocalJob, state: LocalState) -> tuple[LocalJob, str]:
    if job.state is LocalState.INTENDED:
        found = replace(job, state=state, was_submitted=True)
        return found, f"local job {job.number}: found as {job.reference}, {job.stamp}"
    return replace(job, state=state), ""


def _never_there(job: LocalJob, entry: Entry) -> tuple[LocalJob, str]:
    line = f"local job {job.number}: its submission came to nothing ({job.stamp})"
    return replace(job, state=LocalState.KILLED if entry.cancelled else LocalState.UNSUBMITTED), line


def _ended(seen: Seen, job: LocalJob, entry: Entry, habits: Habits) -> tuple[LocalJob, str]:
    job = replace(job, was_submitted=True)
    end = marks.read_end(seen.end)
    if end is None and seen.lookup.state is not State.DONE:
        said = Report(
            "Failed", f"batch system: {seen.lookup.state}", seen.lookup.message, seen.lookup.exit_code
        )
        return trying.failed(job, SITE, said, entry, habits)
    if end is None or end.report.status == DONE:
        # Such as a file of the OutputSandbox that is missing: nothing that makes it less done.
        noted = "" if end is None else end.report.application_status
        line = ": ".join(filter(None, (f"local job {job.number}: done", noted)))
        return replace(job, state=LocalState.DONE, exit_code=0, message=""), line
    return trying.failed(job, end.cause, end.report, entry, habits)
