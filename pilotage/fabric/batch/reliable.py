"""A batch system whose reports are confirmed by repetition before anything is concluded from them.

A failed lookup, or a job missing from one listing, proves nothing. A job is gone when complete listings
agreed on it several times and for long enough, while neither the accounting nor the job's own marks (which
the adapters read) contradicted. The counts are in memory only: after a restart they begin anew, which costs
time but is never wrong. Errors name the system. Source: SAM-Grid, batch idealizers.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystem,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    Output,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    Survey,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Number and duration of agreeing polls required for a conclusion; by default, that a job is gone."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # in the files of directors and gateways

    listings: Annotated[int, Field(ge=2)] = 3  #: that agree, one after the other
    seconds: Annotated[float, Field(gt=0, le=30 * 86_400)] = 300.0  #: between the first and the last of them


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreeingPolls:
    """Consecutive polls that agreed."""

    times: int
    seconds: float  #: between the first and the last of them

    def convince(self, evidence: Evidence) -> bool:
        """Whether that is enough."""
        return self.times >= evidence.listings and self.seconds >= evidence.seconds


@dataclass(slots=True)
class Agreement:
    """Counts agreeing polls by job; in memory only, so a restart delays conclusions."""

    _first: dict[str, tuple[int, float]] = field(default_factory=dict)

    def once_more(self, what: str, now: float) -> AgreeingPolls:
        """Another look said the same."""
        times, since = self._first.get(what, (0, now))
        self._first[what] = (times + 1, since)
        return AgreeingPolls(times=times + 1, seconds=now - since)

    def end(self, what: str) -> None:
        """A look said something else."""
        self._first.pop(what, None)

    def keep_only(self, those: frozenset[str]) -> None:
        """All else was not seen any more."""
        for what in self._first.keys() - those:
            del self._first[what]


_Answer = TypeVar("_Answer")


@dataclass(slots=True, kw_only=True)
class ForwardingSystem(ABC):
    """A batch system that hands each question on to another one by `_ask`."""

    system: BatchSystem

    @abstractmethod
    def _ask(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask the other one, and decide what its errors mean."""

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the jobs that bear one of the stamps."""
        return self._ask(lambda: self.system.find(stamps))

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """How jobs stand, and the stamps of our jobs that have not ended."""
        return self._ask(lambda: self.system.survey(handles, prefix))

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        self._ask(lambda: self.system.kill(handles))

    def output(self, handle: Handle) -> Output:
        """What the job wrote."""
        return self._ask(lambda: self.system.output(handle))

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove what is kept of jobs that ended."""
        self._ask(lambda: self.system.forget(handles))

    def capacity(self) -> Mapping[str, Capacity]:
        """What the queues have."""
        return self._ask(self.system.capacity)


@dataclass(slots=True, kw_only=True)
class ReliableSystem(ForwardingSystem):
    """A batch system that reports *gone* for *missing* on agreeing evidence.

    Nothing is repeated here: directors and job managers come again in their next cycle.
    """

    name: str = ""  #: in the file of the director or gateway; for messages
    evidence: Evidence = field(default_factory=Evidence)
    clock: Callable[[], float] = time.monotonic  #: seconds; one that is not set by anybody
    _missed: Agreement = field(default_factory=Agreement)

    def submit(self, job: BatchJob) -> str:
        """Put a job into its queue, once: who repeats it has to `find` its stamp first."""
        self._missed.end(job.stamp)  # what was missed before says nothing of this one
        return self._ask(lambda: self.system.submit(job))

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """How jobs stand; single ones may be *unknown*."""
        found = self._ask(lambda: self.system.status(handles))
        return {stamp: self._judged(stamp, report) for stamp, report in found.items()}

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """How jobs stand, and the stamps of our jobs that have not ended."""
        found = ForwardingSystem.survey(self, handles, prefix)
        judged = {stamp: self._judged(stamp, report) for stamp, report in found.reports.items()}
        return replace(found, reports=judged)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove what is kept of jobs that ended."""
        ForwardingSystem.forget(self, handles)
        for handle in handles:
            self._missed.end(handle.stamp)

    def _judged(self, stamp: str, report: JobReport) -> JobReport:
        if report.state is not State.MISSING:
            self._missed.end(stamp)
            return report
        missed = self._missed.once_more(stamp, self.clock())
        if not missed.convince(self.evidence):
            return report
        why = f"in none of {missed.times} listings for {missed.seconds:.0f} s, nor known as ended"
        return replace(report, state=State.GONE, message=why)

    def _ask(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask, and name the system in errors."""
        try:
            return ask()
        except (BatchSystemAway, SubmissionUncertain, SubmissionRefused) as error:
            if not self.name:
                raise
            raise type(error)(f"{self.name}: {error}") from error
