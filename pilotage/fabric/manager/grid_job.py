"""A grid job of a job manager: as pulled from the service, its current status, its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.runner.status_files import Progress
from requirements.values import fold


class ManagerPhase(StrEnum):
    """Current activity of the manager for a grid job. Source: SAM-Grid, states of a job manager."""

    SUBMITTING = "submitting"  #: from its arrival until each of its local jobs was submitted once
    POLLING = "polling"  #: its local jobs wait and run
    UPDATING = "updating"  #: it has news of its local jobs that the service was not told yet
    RESUBMITTING = "resubmitting"  #: failed local jobs are submitted again
    CANCELLING = "cancelling"  #: its local jobs are being ended
    GATHERING = "gathering"  #: the output of its local jobs is collected
    ENDED = "ended"  #: its outcome is ready to be reported


class LocalState(StrEnum):
    """State of a local job."""

    UNSUBMITTED = "unsubmitted"
    INTENDED = "intended"  #: submission started; its result is found out by the stamp
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"


#: Final states; a local job leaves them only to be tried again.
ENDED = frozenset({LocalState.DONE, LocalState.FAILED, LocalState.KILLED})


class Aggregate(StrEnum):
    """Overall state of all local jobs. Source: SAM-Grid, status aggregation."""

    UNSUBMITTED = "unsubmitted"
    ACTIVE = "active"
    DONE = "done"
    ERROR = "error"  #: all have ended, not all of them well


#: Type of a grid job that states none.
_USUAL_TYPE = "generic"


def job_type(description: Mapping[str, Any]) -> str:
    """The type of a grid job."""
    return str(description.get("JobType") or _USUAL_TYPE)


class AttemptKey(NamedTuple):
    """Key of an attempt at a grid job."""

    job_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledGridJob:
    """A grid job as pulled from the service."""

    job_id: int
    epoch: int  #: of the attempt
    lease: str = field(repr=False)
    description: Mapping[str, Any]
    queue: str  #: `Site/CE/Queue` that it was pulled for
    flags: tuple[str, ...] = ()  #: of its local jobs, for what its Requirements leave to the nodes
    resources: JobResources | None = None  #: of each local job; None: what the gateway's queue states

    @property
    def key(self) -> AttemptKey:
        """Key of the attempt."""
        return AttemptKey(self.job_id, self.epoch)

    @property
    def queue_and_vo(self) -> tuple[str, str]:
        """The queue, and the folded name of the job's VO."""
        return self.queue, fold(str(self.description.get("VO", "")))

    @property
    def name(self) -> str:
        """Job and attempt as one word for stamps and paths."""
        return f"{self.job_id}.{self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJobStatus:
    """The current status of a local job, as the service stores it."""

    number: int  #: from 1
    state: LocalState
    tries: int
    reference: str | None  #: of its latest try, in the batch system
    started_at: str | None  #: RFC 3339; None: not started, or not seen running
    ended_at: str | None
    exit_code: int | None
    message: str  #: why its last try failed
    details: Mapping[str, str | int | float]  #: of its handler, for users


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJob:
    """The current status of a grid job."""

    taken: PulledGridJob
    phase: ManagerPhase
    local: Mapping[LocalState, int] = field(default_factory=dict)  #: numbers of local jobs, where not 0
    local_jobs: tuple[LocalJobStatus, ...] = ()  #: by number
    progress: tuple[Progress, ...] = ()  #: by phase of the payload, summed up over all local jobs
    output: Path | None = None  #: one compressed tar; None: not yet, or there is none
    outcome: Report | None = None  #: final report for the service; set when it has ended
    problem: str = ""  #: reason for a delay, for people
    tail: str = ""  #: end of the output of one of its running local jobs

    @property
    def aggregate(self) -> Aggregate:
        """State of all local jobs: active if one is unfinished, an error if one has not ended well."""
        states = {state for state, number in self.local.items() if number}
        if states <= {LocalState.UNSUBMITTED}:
            return Aggregate.UNSUBMITTED
        if states == {LocalState.DONE}:
            return Aggregate.DONE
        return Aggregate.ERROR if states <= ENDED else Aggregate.ACTIVE
