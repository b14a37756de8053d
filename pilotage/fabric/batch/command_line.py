"""Common parts of batch systems that are used through commands.

Each job has its stamp as name and is identified by it, since job numbers are reused. One listing covers all
jobs; a job that is missing from it is looked up by its status marks, else in the accounting.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    Output,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.shell import Completed, NoAnswer, Shell
from pilotage.fabric.batch.work_area import (
    ListedJob,
    StatusMarks,
    WorkAreas,
    choose_job,
    index_by_stamp,
    job_report,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLineSystem(ABC):
    """A batch system made of a few commands, which each kind defines."""

    areas: WorkAreas
    flags: tuple[str, ...] = ()  #: arguments of every submission

    @abstractmethod
    def capacity(self) -> Mapping[str, Capacity]:
        """What the queues have, by name."""

    @abstractmethod
    def _submission(self, job: BatchJob) -> Sequence[str]:
        """Lay out the job's files; the command that submits it."""

    @abstractmethod
    def _reference(self, said: str) -> str | None:
        """The reference in what a submission said that ended well."""

    @abstractmethod
    def _is_away(self, done: Completed) -> bool:
        """Whether a submission failed that may have been taken: the batch system did not refuse it."""

    @abstractmethod
    def _listing(self) -> Iterable[ListedJob]:
        """Our jobs that are listed, in one question for all."""

    @abstractmethod
    def _end(self, references: Sequence[str]) -> None:
        """End jobs; those that are not there any more are no error."""

    def _accounted(self, stamps: Collection[str]) -> Iterable[ListedJob]:  # noqa: ARG002 - for those that have any
        """Jobs that ended and are not listed any more, as far as it is known."""
        return ()

    def _lives(self, row: ListedJob) -> bool:
        """Whether a listed job is still to be ended."""
        return row.state not in ENDED

    def submit(self, job: BatchJob) -> str:
        """Put a job into its queue; its reference."""
        command = self._submission(job)
        try:
            done = self._shell.run(command)
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        if done.status == 0 and (reference := self._reference(done.stdout)) is not None:
            return reference
        said = f"{job.stamp}: {command[0]}: {done.said}"
        if done.status == 0 or self._is_away(done):
            # It may have been taken before the line broke.
            raise SubmissionUncertain(said)
        raise SubmissionRefused(said)

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """How jobs stand: by the listing, else by what they left, else by the accounting."""
        asked = {handle.stamp: handle for handle in handles}
        listed = self._listed(asked)
        over = [stamp for stamp in asked if all(row.state in ENDED for row in listed.get(stamp, ()))]
        marks = self.areas.marks(over)
        lost = [stamp for stamp in over if stamp not in listed and not marks[stamp].ended]
        found = {**index_by_stamp(self._accounted(lost) if lost else ()), **listed}
        return {
            stamp: job_report(
                choose_job(found.get(stamp, ()), handle), marks.get(stamp, StatusMarks()), handle
            )
            for stamp, handle in asked.items()
        }

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the listed jobs that bear one of the stamps."""
        return {stamp: tuple(row.reference for row in rows) for stamp, rows in self._listed(stamps).items()}

    def stamps(self, prefix: str) -> frozenset[str]:
        """The stamps that begin so, of our own jobs that are listed and have not ended."""
        return frozenset(
            row.stamp for row in self._listing() if row.stamp.startswith(prefix) and self._lives(row)
        )

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        listed = self._listed([handle.stamp for handle in handles])
        alive = [row for rows in listed.values() for row in rows if self._lives(row)]
        if alive:
            self._mark_killed({row.stamp for row in alive})
            self._end([row.reference for row in alive])

    def output(self, handle: Handle) -> Output:
        """What the job wrote so far."""
        return self.areas.output(handle.stamp)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove the work areas of jobs that ended."""
        self.areas.remove(handle.stamp for handle in handles)

    def _mark_killed(self, stamps: Collection[str]) -> None:
        """Note that we ask for the end of jobs; no job lives on because that cannot be noted."""
        try:
            self.areas.mark_killed(stamps)
        except BatchSystemAway as error:
            log.warning("jobs that are killed now will look as if they had failed: %s", error)

    @property
    def _shell(self) -> Shell:
        return self.areas.shell

    def _listed(self, stamps: Collection[str]) -> Mapping[str, list[ListedJob]]:
        wanted = frozenset(stamps)
        if not wanted:
            return {}
        return index_by_stamp(row for row in self._listing() if row.stamp in wanted)
