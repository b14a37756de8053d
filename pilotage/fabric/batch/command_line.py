"""Common parts of batch systems that list their jobs, and of those that are used through commands.

Each job has its stamp as name and is identified by it, since job numbers are reused. One listing covers all
jobs; a job that is missing from it is looked up by its status marks, else in the accounting.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    Output,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    SubmissionUnread,
    Survey,
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

#: Seconds until the accounting is queried again for a job whose end it did not have: it lags behind.
#: Each wait is twice as long as the one before, up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 3.0, 120.0


class _Missing(NamedTuple):
    """When the accounting is queried again for a job that it did not have."""

    next_query: float  #: of the clock, seconds
    wait: float  #: seconds from the query before to this one


@dataclass(slots=True)
class AccountingCache:
    """Accounting records of ended jobs: they are slow to read, and never change.

    That a job lives is not believed: it lags behind the listing, and some records are never closed.
    """

    clock: Callable[[], float] = time.monotonic  #: seconds
    _found: dict[str, list[ListedJob]] = field(default_factory=dict)
    _missing: dict[str, _Missing] = field(default_factory=dict)

    def find(
        self, stamps: Collection[str], query: Callable[[Collection[str]], Iterable[ListedJob]], where: str
    ) -> Mapping[str, list[ListedJob]]:
        """The records of jobs, by stamp; none without an answer, which is warned of as that of `where`."""
        now = self.clock()
        due = [stamp for stamp in stamps if stamp not in self._found and self._is_due(stamp, now)]
        if due:
            rows: list[ListedJob] = []
            try:
                rows.extend(query(due))  # keeps what came before an error
            except BatchSystemAway as error:
                log.warning("%s: the accounting does not answer: %s", where, error)
            wanted = frozenset(due)
            ended = (row for row in rows if row.stamp in wanted and row.state in ENDED)
            self._found |= index_by_stamp(ended)
            for stamp in due:
                self._note(stamp, now)
        return {stamp: self._found[stamp] for stamp in stamps if stamp in self._found}

    def forget(self, stamps: Iterable[str]) -> None:
        """Remove jobs that nobody follows any more."""
        for stamp in stamps:
            self._found.pop(stamp, None)
            self._missing.pop(stamp, None)

    def _is_due(self, stamp: str, now: float) -> bool:
        missing = self._missing.get(stamp)
        return missing is None or now >= missing.next_query

    def _note(self, stamp: str, now: float) -> None:
        """Plan the next query for a job that was queried for now, unless it was found."""
        before = self._missing.pop(stamp, None)
        if stamp not in self._found:
            wait = _FIRST_WAIT if before is None else min(2 * before.wait, _LONGEST_WAIT)
            self._missing[stamp] = _Missing(next_query=now + wait, wait=wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingSystem(ABC):
    """A batch system whose jobs are known by a listing of all of them."""

    areas: WorkAreas
    flags: tuple[str, ...] = ()  #: arguments of every submission
    accounting: AccountingCache = field(default_factory=AccountingCache)

    @abstractmethod
    def capacity(self) -> Mapping[str, Capacity]:
        """Capacity of the queues, by name."""

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

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """The states of jobs: by the listing, else by the files that they left, else by the accounting."""
        return self._reports(handles, index_by_stamp(self._listing())) if handles else {}

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """The states of jobs, and the stamps of our listed jobs that have not ended."""
        rows = list(self._listing())
        return Survey(
            reports=self._reports(handles, index_by_stamp(rows)),
            stamps=frozenset(row.stamp for row in rows if row.stamp.startswith(prefix) and self._lives(row)),
        )

    def _reports(
        self, handles: Sequence[Handle], listed: Mapping[str, Sequence[ListedJob]]
    ) -> Mapping[str, JobReport]:
        asked = {handle.stamp: handle for handle in handles}
        over = [stamp for stamp in asked if all(row.state in ENDED for row in listed.get(stamp, ()))]
        marks = self.areas.marks(over)
        lost = [stamp for stamp in over if stamp not in listed and not marks[stamp].ended]
        found = {**self.accounting.find(lost, self._accounted, self.areas.directory), **listed}
        return {
            stamp: job_report(
                choose_job(found.get(stamp, ()), handle), marks.get(stamp, StatusMarks()), handle
            )
            for stamp, handle in asked.items()
        }

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the listed jobs that bear one of the stamps."""
        return {stamp: tuple(row.reference for row in rows) for stamp, rows in self._listed(stamps).items()}

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        listed = self._listed([handle.stamp for handle in handles])
        # By the listing of this moment: one that was to be ended while it waits may have started.
        only_waiting = {handle.stamp for handle in handles if handle.only_waiting}
        alive = [
            row
            for rows in listed.values()
            for row in rows
            if self._lives(row) and (row.stamp not in only_waiting or row.state is State.WAITING)
        ]
        if alive:
            self._mark_killed({row.stamp for row in alive})
            self._end([row.reference for row in alive])

    def output(self, handle: Handle) -> Output:
        """Output of the job so far."""
        return self.areas.output(handle.stamp)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove the work areas of jobs that ended."""
        self.areas.remove(handle.stamp for handle in handles)
        self.accounting.forget(handle.stamp for handle in handles)

    def list_old_areas(self, seconds: float) -> frozenset[str]:
        """The stamps of work areas in which nothing was made for so long."""
        return self.areas.list_old(seconds)

    def check_areas(self) -> None:
        """Test that files can be written where work areas are made."""
        self.areas.check()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLineSystem(ListingSystem):
    """A batch system made of a few commands, which each kind defines."""

    @abstractmethod
    def _submission(self, job: BatchJob) -> Sequence[str]:
        """Lay out the job's files; the command that submits it."""

    @abstractmethod
    def _reference(self, said: str) -> str | None:
        """The reference in what a submission said, whatever else is there."""

    @abstractmethod
    def _is_refused(self, done: Completed) -> bool:
        """Whether a submission that failed was refused for good, by the words of the batch system."""

    def submit(self, job: BatchJob) -> str:
        """Put a job into its queue; its reference."""
        command = self._submission(job)
        try:
            done = self._shell.run(command)
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        reference = self._reference(done.stdout)
        if done.status == 0 and reference is not None:
            return reference
        said = f"{job.stamp}: {command[0]}: {done.said}"
        if done.status == 0:
            raise SubmissionUnread(f"{said}: there is no reference in it")
        if done.status > 0 and reference is None and self._is_refused(done):
            raise SubmissionRefused(said)
        # It may have been taken before the line broke, or before the command was killed.
        raise SubmissionUncertain(said)
