"""State of local jobs from their batch system and their status files; retries and cancellation.

Each batch system is queried once per round for the local jobs of all grid jobs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pilotage.fabric.batch.batch_system import ENDED, State
from pilotage.fabric.batch.batch_system import JobReport as Lookup
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.manager import shared_area
from pilotage.fabric.manager.context import ManagerOptions, Retries, SharedBatchSystem
from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.records import GridJobEntry, LocalJob
from pilotage.fabric.manager.shared_area import SharedArea
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import DONE, Report
from pilotage.fabric.runner import status_files
from pilotage.fabric.runner.status_files import PAYLOAD, SITE


def retry_or_give_up(
    job: LocalJob, cause: str, said: Report, entry: GridJobEntry, habits: ManagerOptions
) -> tuple[LocalJob, str]:
    """Decide on a failed local job; return its new state and a log line.

    Args:
        job: Its previous state.
        cause: Cause of the failure, as in `runner.status_files`.
        said: How it ended.
        entry: Of its grid job.
        habits: With the retry policy.
    """
    why = ": ".join(filter(None, (said.minor_status, said.application_status))) or "ended without a word"
    line = f"local job {job.number}, try {job.tries} ({job.stamp}): {why}"
    if entry.cancelled:
        return replace(job, state=LocalState.KILLED, exit_code=said.exit_code, message=why), f"{line}; killed"
    if _may_retry(job, cause, habits.retries):
        return replace(job.again(), message=why), f"{line}; it is tried again"
    return replace(job, state=LocalState.FAILED, exit_code=said.exit_code, message=why), f"{line}; given up"


def _may_retry(job: LocalJob, cause: str, retries: Retries) -> bool:
    if job.tries >= retries.tries:
        return False
    return cause == SITE or (cause == PAYLOAD and retries.exit_codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledJob:
    """A local job with the results of one poll."""

    job: LocalJob
    lookup: Lookup
    news: str = ""  #: content of this status file
    end: str = ""  #: content of this status file


def next_state(seen: PolledJob, entry: GridJobEntry, habits: ManagerOptions) -> tuple[LocalJob, str]:
    """The new state of a local job, and a log line or an empty string.

    *Unknown* changes nothing, and *missing* only if the job's own status file reports its end.
    """
    job, state = _update_news(seen), seen.lookup.state
    if state is State.UNKNOWN or (state is State.MISSING and not seen.end):
        return job, ""
    if state is State.WAITING:
        return _mark_alive(job, LocalState.WAITING)
    if state is State.RUNNING:
        return _mark_alive(job, LocalState.RUNNING)
    if state is State.GONE and not seen.end and job.state is LocalState.INTENDED:
        return _mark_unsubmitted(job, entry)
    return _ended(seen, job, entry, habits)


def _update_news(seen: PolledJob) -> LocalJob:
    job = seen.job
    if seen.lookup.reference is not None and job.reference is None:
        job = replace(job, reference=seen.lookup.reference, was_submitted=True)
    if not seen.news:
        return job
    progress, tail = status_files.read_news(seen.news)
    return replace(job, progress=progress or job.progress, tail=tail)


def _mark_alive(job: LocalJob, state: LocalState) -> tuple[LocalJob, str]:
    if job.state is LocalState.INTENDED:
        found = replace(job, state=state, was_submitted=True)
        return found, f"local job {job.number}: found as {job.reference}, {job.stamp}"
    return replace(job, state=state), ""


def _mark_unsubmitted(job: LocalJob, entry: GridJobEntry) -> tuple[LocalJob, str]:
    line = f"local job {job.number}: its submission came to nothing ({job.stamp})"
    return replace(job, state=LocalState.KILLED if entry.cancelled else LocalState.UNSUBMITTED), line


def _ended(
    seen: PolledJob, job: LocalJob, entry: GridJobEntry, habits: ManagerOptions
) -> tuple[LocalJob, str]:
    job = replace(job, was_submitted=True)
    end = status_files.read_end(seen.end)
    if end is None and seen.lookup.state is not State.DONE:
        said = Report(
            "Failed", f"batch system: {seen.lookup.state}", seen.lookup.message, seen.lookup.exit_code
        )
        return retry_or_give_up(job, SITE, said, entry, habits)
    if end is None or end.report.status == DONE:
        # Details such as a missing file of the OutputSandbox do not make the job fail.
        noted = "" if end is None else end.report.application_status
        line = ": ".join(filter(None, (f"local job {job.number}: done", noted)))
        return replace(job, state=LocalState.DONE, exit_code=0, message=""), line
    return retry_or_give_up(job, end.cause, end.report, entry, habits)


@dataclass(slots=True, kw_only=True)
class Polling:
    """Polls the local jobs of all grid jobs."""

    habits: ManagerOptions
    book: Journal
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic  #: seconds
    _ended_at: dict[str, float] = field(default_factory=dict)  #: by stamp, when the end was first seen

    def poll(self, farm: SharedBatchSystem, entries: Sequence[GridJobEntry]) -> None:
        """Update the local jobs of some grid jobs of one batch system.

        Raises:
            NoAnswer: The batch system does not respond.
            BatchSystemAway: The status files cannot be read now.
        """
        of_entry = {
            entry.key: [job for job in self.book.local_jobs(entry.key) if job.lives] for entry in entries
        }
        jobs = [job for some in of_entry.values() for job in some]
        if not jobs:
            return
        lookups = farm.system.status([job.handle for job in jobs])
        unknown = next((each.message for each in lookups.values() if each.state is State.UNKNOWN), None)
        if unknown is not None:
            raise NoAnswer(unknown)
        areas = {entry.key: shared_area.area_of(entry, farm, self.book.key) for entry in entries}
        # Read status files after the batch system's answer: a job reported as ended has written them.
        said = self._marks(farm, [(job, areas[job.key]) for job in jobs if _may_have_marks(job, lookups)])
        for entry in entries:
            self._update_jobs(
                farm,
                areas[entry.key],
                entry,
                [_polled_job(job, areas[entry.key], lookups, said) for job in of_entry[entry.key]],
            )

    def _marks(
        self, farm: SharedBatchSystem, jobs: Sequence[tuple[LocalJob, SharedArea]]
    ) -> Mapping[str, str]:
        names = [area.mark(job, name) for job, area in jobs for name in (status_files.NEWS, status_files.END)]
        return shared_area.read_first_lines(farm, names)

    def _update_jobs(
        self, farm: SharedBatchSystem, area: SharedArea, entry: GridJobEntry, seen: Sequence[PolledJob]
    ) -> None:
        changed: list[LocalJob] = []
        log: list[str] = []
        for each in seen:
            if self._has_to_settle(each, entry, area):
                continue
            self._ended_at.pop(each.job.stamp, None)
            job, line = next_state(each, entry, self.habits)
            if each.lookup.state is State.GONE:
                job, line = self._disarm(farm, each.job, job, line)
            if job != each.job:
                changed.append(job)
            log += [line] * bool(line)
        if changed or log:
            self.book.write(entry.key, now=self.clock(), local_jobs=changed, log=log)

    def _has_to_settle(self, seen: PolledJob, entry: GridJobEntry, area: SharedArea) -> bool:
        """Whether status files may still appear: a shared directory shows them late, or is away."""
        if seen.end or seen.lookup.state not in ENDED:
            return False
        if entry.cancelled and seen.job.state is not LocalState.RUNNING:
            return False
        since = self._ended_at.setdefault(seen.job.stamp, self.monotonic())
        if seen.lookup.state is not State.GONE and self.monotonic() - since < self.habits.settle:
            return True
        return not entry.cancelled and not area.is_there

    def _disarm(
        self, farm: SharedBatchSystem, before: LocalJob, after: LocalJob, line: str
    ) -> tuple[LocalJob, str]:
        """Before resubmission, make sure that an earlier try that seems gone cannot run any more."""
        if after.stamp != before.stamp:
            farm.system.kill([before.handle])
            farm.system.forget([before.handle])
        elif after.state is LocalState.UNSUBMITTED and (found := farm.system.find([before.stamp])):
            reference = found[before.stamp][0]
            adopted = replace(before, state=LocalState.WAITING, reference=reference, was_submitted=True)
            return adopted, f"local job {before.number}: found as {reference}, {before.stamp}"
        return after, line


def _may_have_marks(job: LocalJob, lookups: Mapping[str, Lookup]) -> bool:
    return lookups[job.stamp].state is not State.WAITING


def _polled_job(
    job: LocalJob, area: SharedArea, lookups: Mapping[str, Lookup], said: Mapping[str, str]
) -> PolledJob:
    return PolledJob(
        job=job,
        lookup=lookups[job.stamp],
        news=said.get(area.mark(job, status_files.NEWS), ""),
        end=said.get(area.mark(job, status_files.END), ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling:
    """Kills local jobs, round by round, until the batch system reports that they have ended."""

    book: Journal
    clock: Callable[[], datetime]

    def advance(self, entry: GridJobEntry, farm: SharedBatchSystem) -> None:
        """Stop submitting, and kill every possible local job by its stamp, even one without a reference.

        Raises:
            BatchSystemAway: To be repeated in the next round.
        """
        jobs = self.book.local_jobs(entry.key)
        never = [
            replace(each, state=LocalState.KILLED) for each in jobs if each.state is LocalState.UNSUBMITTED
        ]
        if never:
            log = [f"{len(never)} local jobs are not submitted any more"]
            self.book.write(entry.key, now=self.clock(), local_jobs=never, log=log)
        if not jobs:
            ended = replace(entry, outcome=payload.failure_report(payload.KILLED))
            self.book.write(
                entry.key, now=self.clock(), entry=ended, log=["ended before anything was submitted"]
            )
        # Include earlier tries: one that seemed gone may have reappeared.
        alive = [handle for each in jobs if each.lives for handle in each.handles]
        if alive:
            farm.system.kill(alive)
