"""Submission of the local jobs of a grid job: plan, pack one archive, submit each in two phases.

The journal records the stamp of a local job before its submission, and the reference afterwards. If a
submission was interrupted in between, the job is searched by its stamp (`polling`), and submitted again only
after the batch system has reported for long enough that it has no such job. It keeps its stamp then, so that
of two batch jobs, should the first one appear after all, only one starts.

The script of a local job contains its job spec and fetches the archive.
"""

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pilotage.fabric.batch.batch_system import BatchJob, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.director.targets import QueueTarget
from pilotage.fabric.manager import polling, shared_area
from pilotage.fabric.manager.context import ManagerContext, ManagerOptions
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.planning import Piece, Planning
from pilotage.fabric.manager.records import GridJobEntry, LocalJob
from pilotage.fabric.manager.shared_area import SharedArea
from pilotage.fabric.node_script import NodeScript
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.transport import TooLarge
from pilotage.fabric.runner import bundle
from pilotage.fabric.runner.local_job import JobSpec
from pilotage.fabric.runner.status_files import SITE

#: All VOs' jobs run as one account and could change the archive; the batch system protects the script.
_FETCH = """\
cp {archive} "$area/job.pyz" && {{
  [ "$(sha256sum <"$area/job.pyz")" = "{digest}  -" ] ||
  {{ echo "local-job: "{archive}" was changed since this job was submitted" >&2; false; }}
}}"""


def script_text(
    entry: GridJobEntry,
    job: LocalJob,
    piece: Piece,
    area: SharedArea,
    outlet: QueueTarget,
    habits: ManagerOptions,
) -> str:
    """Generate the script of one try of a local job."""
    order = JobSpec(
        job_id=entry.taken.job_id,
        number=job.number,
        place=_place(outlet.queue),
        description=_description(entry, job, piece),
        marks=area.marks(job),
        files=piece.files,
        processors=outlet.resources.cores,
        memory=outlet.resources.memory,
        wall_time=outlet.resources.wall_time,
        beat=habits.beat,
        grace=habits.grace,
        sandbox_limit=habits.sandbox_limit,
        output_limit=habits.local_output_limit,
    )
    return NodeScript(
        name="local-job",
        about=f"Local job {job.number} of grid job {entry.taken.job_id}.",
        program="job.pyz",
        words=['"$area/order.json"'],
        files={"order.json": order.as_json()},
        fetch=_FETCH.format(archive=shlex.quote(area.archive), digest=entry.digest),
    ).text()


def _description(entry: GridJobEntry, job: LocalJob, piece: Piece) -> Mapping[str, Any]:
    """The description of the grid job with this local job's command."""
    stated = entry.taken.description
    own = stated.get("ExecutionEnvironment")
    numbers = {"LOCAL_JOB": str(job.number), "LOCAL_JOBS": str(entry.number)}
    return {
        **stated,
        "Executable": piece.command.words[0],
        "Arguments": list(piece.command.words[1:]),
        "ExecutionEnvironment": {
            **(own if isinstance(own, Mapping) else {}),
            **numbers,
            **piece.command.environment,
        },
    }


def _place(queue: str) -> tuple[str, str, str]:
    site, ce, name = queue.split("/", 2)
    return site, ce, name


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJobSubmission:
    """Submits the local jobs of grid jobs."""

    station: ManagerContext
    habits: ManagerOptions
    book: Journal
    clock: Callable[[], datetime]

    def advance(self, entry: GridJobEntry) -> None:
        """Advance a grid job by some steps.

        Raises:
            NoAnswer: Its batch system does not respond; an interrupted submission is searched later.
            BatchSystemAway: It cannot be reached, or has no space.
            Away: The service cannot send the sandbox now.
            Refused: The service refuses to send it.
            OSError: There is no space here.
        """
        try:
            if entry.number is None:
                entry = self._plan(entry)
            jobs = self.book.local_jobs(entry.key)
            is_needed = any(each.state is LocalState.UNSUBMITTED for each in jobs)
            if entry.digest is None or (is_needed and not entry.digest):
                entry = self._pack(entry)
            self._submit(entry, jobs)
        except UnfitJob as error:
            self._end(entry, payload.failure_report(payload.UNFIT, str(error)))
        except TooLarge as error:
            self._end(entry, payload.failure_report(payload.NO_SANDBOX, f"the archive {error}"))

    def _plan(self, entry: GridJobEntry) -> GridJobEntry:
        jobs = self._planning.plan(entry)
        planned = replace(entry, number=len(jobs))
        log = [f"to be {len(jobs)} local jobs of {entry.taken.queue}"]
        self.book.write(entry.key, now=self.clock(), entry=planned, local_jobs=jobs, log=log)
        return planned

    def _pack(self, entry: GridJobEntry) -> GridJobEntry:
        archive = self._archive(entry)
        area = shared_area.area_of(entry, self.station.farm_of(entry), self.book.key)
        area.put_archive(archive)
        packed = replace(entry, digest=hashlib.sha256(archive).hexdigest())
        log = [f"archive of {len(archive)} bytes at {area.archive}"]
        self.book.write(entry.key, now=self.clock(), entry=packed, log=log)
        return packed

    def _archive(self, entry: GridJobEntry) -> bytes:
        sandbox = self.habits.directory / "sandbox"
        try:
            with sandbox.open("w+b") as file:
                limit = self.habits.sandbox_limit
                found = self.station.sandboxes.fetch_sandbox(entry.taken.lease, file, limit=limit)
            return bundle.content(sandbox if found else None)
        finally:
            sandbox.unlink(missing_ok=True)

    def _submit(self, entry: GridJobEntry, jobs: Sequence[LocalJob]) -> None:
        waiting = [each for each in jobs if each.state is LocalState.UNSUBMITTED]
        for job in waiting[: self.habits.at_once]:
            if not self._one(entry, job):
                return

    def _one(self, entry: GridJobEntry, job: LocalJob) -> bool:
        """Submit a local job; False: the batch system accepts no more now."""
        batch_job = self._batch_job(entry, job)
        intended = replace(job, state=LocalState.INTENDED)
        self.book.write(job.key, now=self.clock(), local_jobs=[intended])
        try:
            reference = self.station.farm_of(entry).system.submit(batch_job)
        except SubmissionRefused as error:
            failed, line = polling.retry_or_give_up(
                intended, SITE, Report("Failed", "", str(error)), entry, self.habits
            )
            self.book.write(job.key, now=self.clock(), local_jobs=[failed], log=[line])
            return False
        except SubmissionUncertain as error:
            raise NoAnswer(str(error)) from error
        submitted = replace(intended, state=LocalState.WAITING, reference=reference, was_submitted=True)
        log = [f"local job {job.number}: submitted as {reference}, {job.stamp}"]
        self.book.write(job.key, now=self.clock(), local_jobs=[submitted], log=log)
        return True

    def _batch_job(self, entry: GridJobEntry, job: LocalJob) -> BatchJob:
        outlet = self.station.outlets[entry.taken.queue]
        area = shared_area.area_of(entry, self.station.farm_of(entry), self.book.key)
        piece = self._planning.piece(entry, job.number)
        return BatchJob(
            stamp=job.stamp,
            script=script_text(entry, job, piece, area, outlet, self.habits),
            queue=outlet.batch_queue,
            resources=outlet.resources,
            flags=outlet.flags,
        )

    def _end(self, entry: GridJobEntry, outcome: Report) -> None:
        """Fail the grid job; if local jobs were submitted before, fail only the others."""
        log = [f"{outcome.minor_status}: {outcome.application_status}"]
        jobs = self.book.local_jobs(entry.key)
        rest = [
            replace(each, state=LocalState.FAILED, message=outcome.application_status)
            for each in jobs
            if each.state is LocalState.UNSUBMITTED
        ]
        ended = replace(entry, outcome=outcome) if len(rest) == len(jobs) else entry
        self.book.write(entry.key, now=self.clock(), entry=ended, local_jobs=rest, log=log)

    @property
    def _planning(self) -> Planning:
        return Planning(station=self.station, manager=self.habits.name, book=self.book.key)
