"""What the book of a job manager says of a grid job and of each of its local jobs."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from pilotage.fabric.batch.batch_system import Handle
from pilotage.fabric.manager.grid_job import LocalState, ManagerPhase, PulledGridJob
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.runner.progress import Progress


class AttemptKey(NamedTuple):
    """An attempt at a grid job."""

    job_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobEntry:
    """A grid job as the book has it."""

    taken: PulledGridJob
    number: int | None = None  #: of local jobs; None: not decided
    #: SHA-256 of its archive in the shared directory; None: not packed; empty: packed before it was noted.
    digest: str | None = None
    cancelled: bool = False  #: its end is wanted
    gathering: bool = False  #: it may gather
    output: str | None = None  #: path of the one tar
    outcome: Report | None = None
    forgotten: bool = False  #: the service has acknowledged its end
    problem: str = ""

    @property
    def key(self) -> AttemptKey:
        """Which attempt it is."""
        return AttemptKey(self.taken.job_id, self.taken.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """A local job as the book has it."""

    key: AttemptKey
    number: int  #: from 1
    stamp: str  #: of this try
    tries: int = 1  #: which try it is
    was_submitted: bool = False  #: some try of it reached the batch system
    state: LocalState = LocalState.UNSUBMITTED
    reference: str | None = None
    exit_code: int | None = None
    message: str = ""  #: why it failed
    size: int | None = None  #: units that it does
    progress: tuple[Progress, ...] = ()
    tail: str = ""  #: end of what its payload wrote

    @property
    def handle(self) -> Handle:
        """For the batch system."""
        return Handle(stamp=self.stamp, reference=self.reference)

    @property
    def is_to_submit(self) -> bool:
        """Whether this try has not reached the batch system for sure."""
        return self.state in (LocalState.UNSUBMITTED, LocalState.INTENDED)

    @property
    def lives(self) -> bool:
        """Whether the batch system may have it."""
        return self.state in (LocalState.INTENDED, LocalState.WAITING, LocalState.RUNNING)

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Of all its tries, the last one first: an earlier one may not be as gone as it seemed."""
        earlier = (Handle(stamp=self._stamp_of(tried)) for tried in range(1, self.tries))
        return (self.handle, *earlier)

    def again(self) -> "LocalJob":
        """The next try."""
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
    """What a try of a local job is called in the batch system: nobody else ever has the same."""
    return f"{manager}.{key.job_id}.{key.epoch}.{number}.{tried}.{book}"


def phase(entry: GridJobEntry, unsubmitted: int, again: int) -> ManagerPhase:
    """What is to be done for a grid job.

    Args:
        entry: Of the grid job.
        unsubmitted: Its local jobs that were never submitted for sure.
        again: Its local jobs that were, and are to be submitted again.
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
