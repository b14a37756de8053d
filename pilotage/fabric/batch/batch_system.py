"""The interface of all batch systems: submit, status, kill, output; and its errors, by what to do next.

Reports are confirmed by repetition before anything is concluded from them (`ReliableSystem`). A failed
lookup, or a job missing from one listing, proves nothing. A job is gone when complete listings agreed on it
several times and for long enough, while neither the accounting nor the job's own marks (which the adapters
read) contradicted. The counts are in memory only: after a restart they begin anew, which costs time but is
never wrong. Errors name the system. Source: SAM-Grid, batch idealizers.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Protocol, TypeVar, runtime_checkable

from pydantic import ConfigDict, Field

from requirements.errors import PilotageError


class State(StrEnum):
    """State of a job in its batch system. *Unknown* and *missing* prove nothing; only *gone* does."""

    WAITING = "waiting"  #: in its queue, or held there
    RUNNING = "running"
    DONE = "done"  #: ended with status 0
    FAILED = "failed"  #: ended otherwise: exit status, node failure, a limit of the batch system
    KILLED = "killed"  #: removed by somebody
    MISSING = "missing"  #: a whole listing does not have it, and nothing says that it ended
    GONE = "gone"  #: missing in so many listings over so long that no trace of it is left
    UNKNOWN = "unknown"  #: the batch system could not be asked, or answered in part


#: States that a job does not leave.
ENDED = frozenset({State.DONE, State.FAILED, State.KILLED, State.GONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResources:
    """Resources that a job requests from the batch system."""

    cores: int = 1
    memory: int | None = None  #: MB for the whole job; None: what the queue gives
    wall_time: int | None = None  #: seconds; None: what the queue gives
    gpus: int = 0
    whole_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A job to submit."""

    stamp: str  #: our name of it, unique for ever: batch systems give their own numbers out again
    script: str  #: an executable text with its `#!` line
    queue: str
    resources: JobResources = JobResources()
    flags: tuple[str, ...] = ()  #: arguments for the batch system, each one whole
    #: Nodes, by their names in the batch system, where it is not to run, if the system can be told so.
    avoided_nodes: tuple[str, ...] = ()
    #: What it is for, by words such as VO, Owner, Job: shown by the batch system to its administrators.
    about: Mapping[str, str] = field(default_factory=dict)
    #: For a system that `CarriesFiles`, by paths in the working directory: files to put there, and to keep.
    inputs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    outputs: tuple[str, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        """What it is for, in characters without a meaning for any batch system: users choose some values."""
        return {name: _MEANING.sub("_", value)[:_LONGEST_LABEL] for name, value in self.about.items()}


_MEANING = re.compile(r"[^A-Za-z0-9.@:/+-]")
_LONGEST_LABEL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Identification of a submitted job."""

    stamp: str
    reference: str | None = None  #: the batch system's number; None: the answer to the submission got lost
    #: To be ended only if it has not started; command-line batch systems can tell, others end it anyway.
    only_waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """State of a job as reported by its batch system."""

    state: State
    reference: str | None = None
    exit_code: int | None = None  #: of the script; 128 + number for a signal
    message: str = ""  #: in the words of the batch system
    host: str = ""  #: the name of its node, by the node itself; empty: not known
    node: str = ""  #: the name of its node in the batch system; empty: not known
    was_killed: bool = False  #: its end was requested; also of one that is *missing*, or *gone* since


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Jobs of our account from one listing."""

    reports: Mapping[str, JobReport]  #: by stamp, of all requested jobs
    stamps: frozenset[str]  #: with the requested prefix, of listed jobs that have not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output of a job so far."""

    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity and load of a queue."""

    cores: int  #: in nodes that are up
    free_cores: int
    waiting: int  #: jobs of everybody
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """Jobs of everybody in some queues of a batch system, each once."""

    waiting: int
    running: int


class BatchSystem(Protocol):
    """One batch system, seen by one user of it.

    Every verb raises `BatchSystemAway` where the batch system cannot be asked. A stamp is submitted by one
    caller only, and never again before `find` said that no job has it.
    """

    def submit(self, job: BatchJob) -> str:
        """Put a job into its queue; its reference.

        `SubmissionRefused`: it will never be taken as it is. `SubmissionUncertain`: no answer; whether it is
        there, `find` shows later. `BatchSystemAway`: it was certainly not submitted.
        """

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """The states of all these jobs by stamp, with one query."""

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the listed jobs that bear one of the stamps; more than one is a double."""

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """`status`, and the stamps with a prefix of our listed jobs that have not ended, from one listing.

        The stamps show jobs that nobody follows any more. A job without its stamp there may exist all the
        same: a listing may break off.
        """

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are; those that are not there any more are no error."""

    def output(self, handle: Handle) -> Output:
        """Output of the job; empty as long as it has not started."""

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove what is kept of jobs that ended."""

    def capacity(self) -> Mapping[str, Capacity]:
        """Capacity of the queues, by name."""


@runtime_checkable
class CountsJobs(Protocol):
    """A batch system that counts a job that waits for several queues once."""

    def count_jobs(self, queues: Collection[str]) -> JobCounts:
        """Count the jobs in these queues, empty: in all; ValueError: there is no such queue."""


@runtime_checkable
class CarriesFiles(Protocol):
    """A batch system that carries the files of its jobs to them and back: no directory is shared."""

    def read_file(self, handle: Handle, name: str, *, last: int) -> bytes:
        """Read the last bytes of a file in the working directory of a job; empty if there is none."""


@runtime_checkable
class KeepsWorkAreas(Protocol):
    """A batch system whose jobs have work areas, which may outlive what is known of the jobs."""

    def list_old_areas(self, seconds: float) -> frozenset[str]:
        """The stamps of work areas in which nothing was made for so long."""


@runtime_checkable
class ChecksWorkAreas(Protocol):
    """A batch system that answers also while no work area can be written."""

    def check_areas(self) -> None:
        """Test that files can be written where work areas are made."""


@runtime_checkable
class DryRuns(Protocol):
    """A batch system that can tell, without running it, whether it would take a job."""

    def dry_run(self, job: BatchJob) -> None:
        """`SubmissionRefused` with the reason if it would not take the job, which leaves nothing behind."""


class BatchSystemAway(PilotageError):
    """The batch system cannot be queried: skip it in this cycle, conclude nothing."""

    code = "ce_unavailable"


class SubmissionRefused(PilotageError):
    """The batch system rejects this job for good: correct the queue, the resources or the flags."""

    code = "submission_refused"


class SubmissionUncertain(PilotageError):
    """The batch system did not respond, and the job may exist: search its stamp before submitting again."""

    code = "submission_uncertain"


class SubmissionUnread(SubmissionUncertain):
    """The batch system took a submission and its answer names no job: uncertain, but others may follow."""


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
        """The states of jobs, and the stamps of our jobs that have not ended."""
        return self._ask(lambda: self.system.survey(handles, prefix))

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        self._ask(lambda: self.system.kill(handles))

    def output(self, handle: Handle) -> Output:
        """Output of the job."""
        return self._ask(lambda: self.system.output(handle))

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove what is kept of jobs that ended."""
        self._ask(lambda: self.system.forget(handles))

    def capacity(self) -> Mapping[str, Capacity]:
        """Capacity of the queues."""
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
        """The states of jobs; single ones may be *unknown*."""
        found = self._ask(lambda: self.system.status(handles))
        return {stamp: self._judged(stamp, report) for stamp, report in found.items()}

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """The states of jobs, and the stamps of our jobs that have not ended."""
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
        why = "not listed by the batch system any more; how it ended is not known"
        return replace(report, state=State.GONE, message=why)

    def _ask(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask, and name the system in errors."""
        try:
            return ask()
        except (BatchSystemAway, SubmissionUncertain, SubmissionRefused) as error:
            if not self.name:
                raise
            raise type(error)(f"{self.name}: {error}") from error
