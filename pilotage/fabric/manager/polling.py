"""State of local jobs from their batch system and their status files; retries and cancellation.

Each batch system is queried once per cycle for the local jobs of all grid jobs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pilotage.fabric.batch.batch_system import ENDED, JobReport, State
from pilotage.fabric.manager.context import ManagerContext, Retries
from pilotage.fabric.manager.grid_job import AttemptKey, GridJobEntry, LocalJob, LocalState
from pilotage.fabric.manager.shared_area import LookedAt, SharedArea, SharedBatchSystem, StatusTexts
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import DONE, Report
from pilotage.fabric.runner import status_files
from pilotage.fabric.runner.status_files import PAYLOAD, SITE
from requirements.errors import format_count

#: Message of a local job that ended because of that, whatever its batch system or its payload made of it.
_WITH_ITS_GRID_JOB = "its grid job was killed"


def retry_or_give_up(
    job: LocalJob, cause: str, said: Report, entry: GridJobEntry, retries: Retries
) -> tuple[LocalJob, str]:
    """Decide on a failed local job; return its new state and a log line.

    `cause` is one of `runner.status_files`; `said` is how the job ended.
    """
    why = ": ".join(filter(None, (said.minor_status, said.application_status))) or "ended without a word"
    line = f"local job {job.number}, try {job.tries} ({job.stamp}): {why}"
    if entry.cancelled:
        message = _WITH_ITS_GRID_JOB if cause == SITE else why
        killed = replace(job, state=LocalState.KILLED, exit_code=said.exit_code, message=message)
        return killed, f"{line}; killed"
    if job.tries < retries.tries and (cause == SITE or (cause == PAYLOAD and retries.exit_codes)):
        return replace(job.again(), message=why), f"{line}; it is tried again"
    return replace(job, state=LocalState.FAILED, exit_code=said.exit_code, message=why), f"{line}; given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledJob:
    """A local job with the results of one poll."""

    job: LocalJob
    lookup: JobReport
    texts: StatusTexts = field(default_factory=StatusTexts)


def next_state(seen: PolledJob, entry: GridJobEntry, retries: Retries) -> tuple[LocalJob, str]:
    """The new state of a local job, and a log line or an empty string.

    *Unknown* changes nothing, and *missing* only if the job's own status file reports its end.
    """
    job, state = _update_news(seen), seen.lookup.state
    if state is State.UNKNOWN or (state is State.MISSING and not seen.texts.end):
        return job, ""
    if state is State.WAITING:
        return _mark_alive(job, LocalState.WAITING)
    if state is State.RUNNING:
        return _mark_alive(job, LocalState.RUNNING)
    if state is State.GONE and not seen.texts.end and job.state is LocalState.INTENDED:
        return _mark_unsubmitted(job, entry)
    return _ended(seen, job, entry, retries)


def _update_news(seen: PolledJob) -> LocalJob:
    job = seen.job
    if seen.lookup.reference is not None and job.reference is None:
        job = replace(job, reference=seen.lookup.reference, was_submitted=True)
    if not seen.texts.news:
        return job
    progress, tail = status_files.read_news(seen.texts.news)
    return replace(job, progress=progress or job.progress, tail=tail)


def _mark_alive(job: LocalJob, state: LocalState) -> tuple[LocalJob, str]:
    if job.state is LocalState.INTENDED:
        found = replace(job, state=state, was_submitted=True)
        return found, f"local job {job.number}: found as {job.reference}, {job.stamp}"
    return replace(job, state=state), ""


def _mark_unsubmitted(job: LocalJob, entry: GridJobEntry) -> tuple[LocalJob, str]:
    line = f"local job {job.number}: its submission came to nothing ({job.stamp})"
    return replace(job, state=LocalState.KILLED if entry.cancelled else LocalState.UNSUBMITTED), line


def _ended(seen: PolledJob, job: LocalJob, entry: GridJobEntry, retries: Retries) -> tuple[LocalJob, str]:
    job = replace(job, was_submitted=True)
    end = status_files.read_end(seen.texts.end)
    if end is None and seen.lookup.state is not State.DONE:
        said = Report(
            "Failed", f"batch system: {seen.lookup.state}", seen.lookup.message, seen.lookup.exit_code
        )
        return retry_or_give_up(job, SITE, said, entry, retries)
    if end is None or end.report.status == DONE:
        # Details such as a missing file of the OutputSandbox do not make the job fail.
        noted = "" if end is None else end.report.application_status
        open_to_others = f"not isolated: {end.not_isolated}" if end and end.not_isolated else ""
        line = ": ".join(filter(None, (f"local job {job.number}: done", noted, open_to_others)))
        return replace(job, state=LocalState.DONE, exit_code=0, message=""), line
    said = end.report
    if said.minor_status == status_files.ENDED_BY_BATCH_SYSTEM and seen.lookup.message:
        said = said.noting(f"batch system: {seen.lookup.message}")
    return retry_or_give_up(job, end.cause, said, entry, retries)


@dataclass(slots=True, kw_only=True)
class Polling:
    """Polls the local jobs of all grid jobs; counts how long status files of ended ones were waited for."""

    context: ManagerContext
    monotonic: Callable[[], float] = time.monotonic  #: seconds
    _ended_at: dict[str, float] = field(default_factory=dict)  #: by stamp, when the end was first seen

    def poll(self, system: SharedBatchSystem, entries: Sequence[GridJobEntry]) -> Mapping[AttemptKey, str]:
        """Update the local jobs of some grid jobs of one batch system, which has to respond.

        Returns why status files of ended jobs could not be read, by grid job.
        """
        journal = self.context.journal
        alive = {each.key: [job for job in journal.local_jobs(each.key) if job.lives] for each in entries}
        jobs = [job for of_entry in alive.values() for job in of_entry]
        if not jobs:
            return {}
        reports = system.system.status([job.handle for job in jobs])
        areas = {entry.key: self.context.area_of(entry) for entry in entries}
        # Read status files after the batch system's answer: a job reported as ended has written them.
        looked_at = [
            LookedAt(
                job=replace(job, reference=job.reference or reports[job.stamp].reference),
                area=areas[job.key],
                state=reports[job.stamp].state,
            )
            for job in jobs
        ]
        texts = system.read_status(looked_at)
        for entry in entries:
            polled = [
                PolledJob(job=job, lookup=reports[job.stamp], texts=texts.get(job.stamp, StatusTexts()))
                for job in alive[entry.key]
            ]
            self._update_jobs(system, areas[entry.key], entry, polled)
        return {
            job.key: f"local job {job.number}: its status files cannot be read: {texts[job.stamp].problem}"
            for job in jobs
            if reports[job.stamp].state in ENDED and texts[job.stamp].problem
        }

    def _update_jobs(
        self, system: SharedBatchSystem, area: SharedArea, entry: GridJobEntry, polled: Sequence[PolledJob]
    ) -> None:
        changed: list[LocalJob] = []
        log: list[str] = []
        for each in polled:
            if self._has_to_settle(each, entry, area):
                continue
            self._ended_at.pop(each.job.stamp, None)
            job, line = next_state(each, entry, self.context.options.retries)
            if each.lookup.state is State.GONE:
                job, line = _disarm(system, each.job, job, line)
            if job != each.job:
                changed.append(job)
            log += [line] * bool(line)
        if changed or log:
            self.context.journal.write(entry.key, local_jobs=changed, log=log)

    def _has_to_settle(self, seen: PolledJob, entry: GridJobEntry, area: SharedArea) -> bool:
        """Whether status files may still appear: a shared directory shows them late, or is away."""
        if not seen.texts.is_read and seen.lookup.state in ENDED:
            return not (entry.cancelled and seen.texts.problem)
        if seen.texts.end or seen.lookup.state not in ENDED:
            return False
        if entry.cancelled and seen.job.state is not LocalState.RUNNING:
            return False
        since = self._ended_at.setdefault(seen.job.stamp, self.monotonic())
        if seen.lookup.state is not State.GONE and self.monotonic() - since < self.context.options.settle:
            return True
        return not entry.cancelled and not area.is_there


def _disarm(system: SharedBatchSystem, before: LocalJob, after: LocalJob, line: str) -> tuple[LocalJob, str]:
    """Before resubmission, make sure that an earlier try that seems gone cannot run any more."""
    if after.stamp != before.stamp:
        system.system.kill([before.handle])
        system.system.forget([before.handle])
    elif after.state is LocalState.UNSUBMITTED and (found := system.system.find([before.stamp])):
        reference = found[before.stamp][0]
        adopted = replace(before, state=LocalState.WAITING, reference=reference, was_submitted=True)
        return adopted, f"local job {before.number}: found as {reference}, {before.stamp}"
    return after, line


def cancel_local_jobs(context: ManagerContext, entry: GridJobEntry) -> None:
    """Stop submitting, and kill every possible local job by its stamp, even one without a reference.

    Repeated in each cycle until the batch system reports that they have ended.
    """
    system, jobs = context.system_of(entry).system, context.journal.local_jobs(entry.key)
    never = [replace(each, state=LocalState.KILLED) for each in jobs if each.state is LocalState.UNSUBMITTED]
    if never:
        log = [f"{format_count(len(never), 'local job is', 'local jobs are')} not submitted any more"]
        context.journal.write(entry.key, local_jobs=never, log=log)
    if not jobs:
        ended = replace(entry, outcome=payload.failure_report(payload.KILLED))
        context.journal.write(entry.key, entry=ended, log=["ended before anything was submitted"])
    # Include earlier tries: one that seemed gone may have reappeared.
    alive = [handle for each in jobs if each.lives for handle in each.handles]
    if alive:
        system.kill(alive)
