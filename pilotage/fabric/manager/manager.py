"""The job manager of a gateway: what surrounds it gives it grid jobs, and sees how they stand.

Each call answers at once; the long work is done by `advance`, which one thread calls again and again. All
that is known is in the book before it is acted upon: a manager that was killed is made anew and goes on.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pilotage.fabric.manager import records
from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.grid_job import GridJob, LocalState, Phase, Taken
from pilotage.fabric.manager.records import Entry, Key, LocalJob
from pilotage.fabric.manager.station import Habits, Station
from pilotage.fabric.runner import progress


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """One per gateway process and directory."""

    station: Station
    habits: Habits
    book: Book
    clock: Callable[[], datetime] = _utc_now

    def take(self, taken: Taken) -> None:
        """Record a grid job before anything is done for it; the same attempt again changes nothing.

        Raises:
            StateUnusable: It is not recorded.
        """
        self.book.take(taken, self.clock())

    def cancel(self, job_id: int, epoch: int) -> None:
        """End a grid job: its local jobs are ended, and what they wrote is gathered.

        Raises:
            StateUnusable: That is not recorded.
        """
        self.book.cancel(Key(job_id, epoch), self.clock())

    def forget(self, job_id: int, epoch: int) -> None:
        """The service has acknowledged the end of a grid job: what is left of it is removed by and by.

        Raises:
            StateUnusable: That is not recorded.
        """
        self.book.forget(Key(job_id, epoch))

    def advance(self) -> None:
        """Go one round over all grid jobs; none of them holds up the others for long.

        Raises:
            StateUnusable: The rest of the round has to wait.
        """
        for entry in self.book.entries():
            if entry.forgotten:
                self.book.remove(entry.key)

    def grid_jobs(self) -> Sequence[GridJob]:
        """All grid jobs as they stand, without those that were forgotten.

        Raises:
            StateUnusable: Nobody can tell.
        """
        return [
            standing(each, self.book.local_jobs(each.key))
            for each in self.book.entries()
            if not each.forgotten
        ]


def standing(entry: Entry, local_jobs: Sequence[LocalJob]) -> GridJob:
    """A grid job as it stands by what the book has."""
    return GridJob(
        taken=entry.taken,
        phase=_phase(entry, local_jobs),
        local=Counter(each.state for each in local_jobs),
        progress=progress.summed([each.progress for each in local_jobs], _missing(local_jobs)),
        output=None if entry.output is None else Path(entry.output),
        outcome=entry.outcome,
        problem=entry.problem,
        tail=next((each.tail for each in local_jobs if each.tail and each.state is LocalState.RUNNING), ""),
    )


def _phase(entry: Entry, local_jobs: Sequence[LocalJob]) -> Phase:
    waiting = Counter(each.tries > 1 for each in local_jobs if not each.is_submitted)
    return records.phase(entry, waiting[False], waiting[True])


def _missing(local_jobs: Sequence[LocalJob]) -> Mapping[str, int]:
    """By phase of the payload, the units of local jobs that have not said anything of it yet."""
    names = {each.name for job in local_jobs for each in job.progress}
    missing: Counter[str] = Counter()
    for job in local_jobs:
        for name in names - {each.name for each in job.progress}:
            missing[name] += job.size or 0
    return missing
