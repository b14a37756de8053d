"""A grid job of a job manager: as pulled from the service, its current status, its outcome.

The journal has a record of each grid job and of each of its local jobs; status and outcome follow from these.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.fabric.batch.batch_system import Handle, JobResources
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.runner import status_files
from pilotage.fabric.runner.status_files import Progress
from requirements.errors import format_count
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
    vo: str = ""
    owner: str = ""  #: empty: not known

    @property
    def key(self) -> AttemptKey:
        """Key of the attempt."""
        return AttemptKey(self.job_id, self.epoch)

    @property
    def queue_and_vo(self) -> tuple[str, str]:
        """The queue, and the folded name of the job's VO."""
        return self.queue, fold(self.vo)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobEntry:
    """A grid job in the journal."""

    taken: PulledGridJob
    number: int | None = None  #: of local jobs; None: not yet planned
    digest: str | None = None  #: SHA-256 of its archive in the shared directory; None: not packed
    cancelled: bool = False
    gathering: bool = False  #: gathering has started
    output: str | None = None  #: path of the final tar
    outcome: Report | None = None
    forgotten: bool = False  #: the service has acknowledged its end
    problem: str = ""

    @property
    def key(self) -> AttemptKey:
        """Key of the attempt."""
        return self.taken.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """A local job in the journal."""

    key: AttemptKey
    number: int  #: from 1
    stamp: str  #: of this try
    tries: int = 1  #: number of this try
    was_submitted: bool = False  #: whether any try reached the batch system
    state: LocalState = LocalState.UNSUBMITTED
    reference: str | None = None
    exit_code: int | None = None
    message: str = ""  #: why it failed
    size: int | None = None  #: units of work
    details: Mapping[str, str | int | float] = field(default_factory=dict)  #: of its handler, for users
    progress: tuple[Progress, ...] = ()
    tail: str = ""  #: end of its payload's output
    started_at: str | None = None  #: when this try was first seen running, RFC 3339
    ended_at: str | None = None  #: when its end was seen

    @property
    def handle(self) -> Handle:
        """Handle of this try for the batch system."""
        return Handle(stamp=self.stamp, reference=self.reference)

    @property
    def lives(self) -> bool:
        """Whether the batch system may have this try."""
        return self.state in (LocalState.INTENDED, LocalState.WAITING, LocalState.RUNNING)

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Handles of all tries, the last one first: an earlier one may reappear."""
        earlier = (Handle(stamp=self._stamp_of(tried)) for tried in range(1, self.tries))
        return (self.handle, *earlier)

    def again(self) -> "LocalJob":
        """The record of the next try."""
        return replace(
            self,
            stamp=self._stamp_of(self.tries + 1),
            tries=self.tries + 1,
            state=LocalState.UNSUBMITTED,
            reference=None,
            exit_code=None,
            progress=(),
            tail="",
            started_at=None,
            ended_at=None,
        )

    def with_times(self, now: str) -> "LocalJob":
        """The record with the times of its state, if this is the first with that state."""
        started_at, ended_at = self.started_at, self.ended_at
        if self.state is LocalState.RUNNING:
            started_at = started_at or now
        if self.state in ENDED:
            ended_at = ended_at or now
        return replace(self, started_at=started_at, ended_at=ended_at)

    @property
    def status(self) -> LocalJobStatus:
        """Its status for the service."""
        return LocalJobStatus(
            number=self.number,
            state=self.state,
            tries=self.tries if self.was_submitted else 0,
            reference=self.reference and payload.printable(self.reference, 300),
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit_code=self.exit_code,
            message=payload.printable(self.message, 300),
            details=self.details,
        )

    def _stamp_of(self, tried: int) -> str:
        manager, *_, journal_id = self.stamp.split(".")
        return stamp(manager, self.key, self.number, tried, journal_id)


def stamp(manager: str, key: AttemptKey, number: int, tried: int, journal_id: str) -> str:
    """Globally unique name of a local job's try in the batch system."""
    return f"{manager}.{key.job_id}.{key.epoch}.{number}.{tried}.{journal_id}"


def grid_job_status(entry: GridJobEntry, local_jobs: Sequence[LocalJob]) -> GridJob:
    """The current status of a grid job."""
    return GridJob(
        taken=entry.taken,
        phase=_phase(entry, local_jobs),
        local=Counter(each.state for each in local_jobs),
        local_jobs=tuple(each.status for each in local_jobs),
        progress=status_files.summed([each.progress for each in local_jobs], _missing(local_jobs)),
        output=None if entry.output is None else Path(entry.output),
        outcome=entry.outcome,
        problem=entry.problem,
        tail=next((each.tail for each in local_jobs if each.tail and each.state is LocalState.RUNNING), ""),
    )


def _phase(entry: GridJobEntry, local_jobs: Sequence[LocalJob]) -> ManagerPhase:
    not_known_to_be_there = (LocalState.UNSUBMITTED, LocalState.INTENDED)
    to_submit = [each for each in local_jobs if each.state in not_known_to_be_there]
    if entry.outcome is not None:
        return ManagerPhase.ENDED
    if entry.gathering:
        return ManagerPhase.GATHERING
    if entry.cancelled:
        return ManagerPhase.CANCELLING
    if entry.number is None or any(not each.was_submitted for each in to_submit):
        return ManagerPhase.SUBMITTING
    return ManagerPhase.RESUBMITTING if to_submit else ManagerPhase.POLLING


def _missing(local_jobs: Sequence[LocalJob]) -> Mapping[str, int]:
    """Units of local jobs that have not reported a phase of the payload yet, by phase."""
    names = {each.name for job in local_jobs for each in job.progress}
    missing: Counter[str] = Counter()
    for job in local_jobs:
        for name in names - {each.name for each in job.progress}:
            missing[name] += job.size or 0
    return missing


#: Minor status if some local jobs are done and others failed.
PARTIAL = "Partially Done"
#: Maximum local jobs named in a message.
_SHOWN = 5


def job_outcome(entry: GridJobEntry, jobs: Sequence[LocalJob]) -> Report:
    """The final report on a grid job whose local jobs have all ended."""
    done = sum(each.state is LocalState.DONE for each in jobs)
    counted = f"{done} of {format_count(len(jobs), 'local job')} done"
    if done == len(jobs):
        said = Report(payload.DONE, payload.COMPLETE, counted, 0)
        lacking = [each.message for each in jobs if each.message]
        return said.without_output("; ".join(lacking[:_SHOWN])) if lacking else said
    bad = [each for each in jobs if each.state is not LocalState.DONE]
    why = f"{counted}; {_some(bad)}"
    if entry.cancelled:
        return payload.failure_report(payload.KILLED, counted)
    code = next((each.exit_code for each in bad if each.exit_code), None)
    return Report(payload.FAILED, PARTIAL if done else payload.ERRORS, why, code)


#: Fields of a local job that readers of the output see by their names.
_TOLD = (
    *("state", "tries", "stamp", "reference", "started_at", "ended_at"),
    *("exit_code", "message", "size"),
)


def outcome_table(jobs: Sequence[LocalJob]) -> bytes:
    """The end of each local job as JSON, for readers of the output."""
    rows = [
        {
            "local_job": each.number,
            **{name: getattr(each, name) for name in _TOLD},
            "progress": [str(phase) for phase in each.progress],
        }
        for each in jobs
    ]
    return json.dumps(rows, indent=1).encode()


def _some(bad: Sequence[LocalJob]) -> str:
    named = [f"{each.number}: {each.message or each.state}"[:150] for each in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        states = Counter(each.state for each in bad[_SHOWN:])
        named += [f"{number} more {state}" for state, number in sorted(states.items())]
    return "; ".join(named)
