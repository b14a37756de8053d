"""Records of the journal: a grid job, and each of its local jobs."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from pilotage.fabric.batch.batch_system import Handle
from pilotage.fabric.manager.grid_job import LocalState, ManagerPhase, PulledGridJob
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.runner.progress import Progress


class AttemptKey(NamedTuple):
    """Key of an attempt at a grid job."""

    job_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobEntry:
    """A grid job in the journal."""

    taken: PulledGridJob
    number: int | None = None  #: of local jobs; None: not yet planned
    #: SHA-256 of its archive in the shared directory; None: not packed; empty: packed by an older release.
    digest: str | None = None
    cancelled: bool = False
    gathering: bool = False  #: gathering has started
    output: str | None = None  #: path of the final tar
    outcome: Report | None = None
    forgotten: bool = False  #: the service has acknowledged its end
    problem: str = ""

    @property
    def key(self) -> AttemptKey:
        """Key of the attempt."""
        return AttemptKey(self.taken.job_id, self.taken.epoch)


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
    progress: tuple[Progress, ...] = ()
    tail: str = ""  #: end of its payload's output

    @property
    def handle(self) -> Handle:
        """Handle of this try for the batch system."""
        return Handle(stamp=self.stamp, reference=self.reference)

    @property
    def is_to_submit(self) -> bool:
        """Whether this try is not known to have reached the batch system."""
        return self.state in (LocalState.UNSUBMITTED, LocalState.INTENDED)

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
        )

    def _stamp_of(self, tried: int) -> str:
        manager, *_, book = self.stamp.split(".")
        return stamp(manager, self.key, self.number, tried, book)


def stamp(manager: str, key: AttemptKey, number: int, tried: int, book: str) -> str:
    """Globally unique name of a local job's try in the batch system."""
    return f"{manager}.{key.job_id}.{key.epoch}.{number}.{tried}.{book}"


def phase(entry: GridJobEntry, unsubmitted: int, again: int) -> ManagerPhase:
    """The current phase of a grid job.

    Args:
        entry: Of the grid job.
        unsubmitted: Number of its local jobs that were never submitted for sure.
        again: Number of its local jobs that are to be submitted again.
    """
    if entry.outcome is not None:
        return ManagerPhase.ENDED
    if entry.gathering:
        return ManagerPhase.GATHERING
    if entry.cancelled:
        return ManagerPhase.CANCELLING
    if entry.number is None or unsubmitted:
        return ManagerPhase.SUBMITTING
    return ManagerPhase.UPDATING if again else ManagerPhase.POLLING
