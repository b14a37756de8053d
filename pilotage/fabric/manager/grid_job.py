"""A grid job in the hands of a job manager: how it came, how it stands, how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.runner.progress import Progress


class ManagerPhase(StrEnum):
    """What its manager does for it. Source: SAM-Grid, states of a job manager."""

    SUBMITTING = "submitting"  #: from its arrival until each of its local jobs was submitted once
    POLLING = "polling"  #: its local jobs wait and run
    UPDATING = "updating"  #: local jobs that failed are submitted again
    CANCELLING = "cancelling"  #: its local jobs are being ended
    GATHERING = "gathering"  #: the output of its local jobs is put together
    ENDED = "ended"  #: its outcome is to be told to the service


class LocalState(StrEnum):
    """How a local job stands."""

    UNSUBMITTED = "unsubmitted"
    INTENDED = "intended"  #: about to be submitted; whether it was, its stamp will tell
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"


#: States that a local job leaves only to be tried again.
ENDED = frozenset({LocalState.DONE, LocalState.FAILED, LocalState.KILLED})


class Aggregate(StrEnum):
    """All local jobs in a word. Source: SAM-Grid, status aggregation."""

    UNSUBMITTED = "unsubmitted"
    ACTIVE = "active"
    DONE = "done"
    ERROR = "error"  #: all have ended, not all as they should


#: What grid jobs are that state no type.
_USUAL_TYPE = "generic"


def job_type(description: Mapping[str, Any]) -> str:
    """The type that a grid job is of."""
    return str(description.get("JobType") or _USUAL_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledGridJob:
    """A grid job as it came from the service."""

    job_id: int
    epoch: int  #: of the attempt
    lease: str = field(repr=False)
    description: Mapping[str, Any]
    queue: str  #: `Site/CE/Queue` that it was taken for

    @property
    def name(self) -> str:
        """Job and attempt in a word: part of stamps and paths."""
        return f"{self.job_id}.{self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJob:
    """A grid job as it stands."""

    taken: PulledGridJob
    phase: ManagerPhase
    local: Mapping[LocalState, int] = field(default_factory=dict)  #: numbers of local jobs, where not 0
    progress: tuple[Progress, ...] = ()  #: by phase of the payload, summed up over all local jobs
    output: Path | None = None  #: one tar, compressed; None: not yet, or there is none
    outcome: Report | None = None  #: as it is told to the service; set when it has ended
    problem: str = ""  #: what holds it up now, for people
    tail: str = ""  #: end of what one of its running local jobs wrote

    @property
    def aggregate(self) -> Aggregate:
        """All local jobs in a word."""
        return aggregate_states(self.local)


def aggregate_states(local: Mapping[LocalState, int]) -> Aggregate:
    """Numbers by state in a word: any that goes on makes all active, one that did not end well an error."""
    states = {state for state, number in local.items() if number}
    if not states or states == {LocalState.UNSUBMITTED}:
        return Aggregate.UNSUBMITTED
    if states == {LocalState.DONE}:
        return Aggregate.DONE
    return Aggregate.ERROR if states <= ENDED else Aggregate.ACTIVE
