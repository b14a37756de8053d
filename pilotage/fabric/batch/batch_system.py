"""The interface of all batch systems: submit, status, kill, output; and its errors, by what to do next."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """State of a job as reported by its batch system."""

    state: State
    reference: str | None = None
    exit_code: int | None = None  #: of the script; 128 + number for a signal
    message: str = ""  #: in the words of the batch system


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
        """How jobs stand, by stamp, with one query for all; each that was asked for is in the answer."""

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
        """What the job wrote; empty as long as it has not started."""

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove what is kept of jobs that ended."""

    def capacity(self) -> Mapping[str, Capacity]:
        """What the queues have, by name."""


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


class BatchSystemAway(PilotageError):
    """The batch system cannot be queried: skip it in this cycle, conclude nothing."""

    code = "ce_unavailable"


class SubmissionRefused(PilotageError):
    """The batch system rejects this job for good: correct the queue, the resources or the flags."""

    code = "submission_refused"


class SubmissionUncertain(PilotageError):
    """The batch system did not respond, and the job may exist: search its stamp before submitting again."""

    code = "submission_uncertain"
