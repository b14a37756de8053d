"""The end of a grid job that is wanted: reaches every local job, also one whose reference never came."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.records import Entry
from pilotage.fabric.manager.station import Farm
from pilotage.fabric.pilot import report


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling:
    """Ends local jobs, round by round, until the batch system says that they have ended."""

    book: Book
    clock: Callable[[], datetime]

    def advance(self, entry: Entry, farm: Farm) -> None:
        """Submit no more, and end what may be there by its stamps.

        Raises:
            BatchSystemAway: It is asked again in the next round.
        """
        jobs = self.book.local_jobs(entry.key)
        never = [
            replace(each, state=LocalState.KILLED) for each in jobs if each.state is LocalState.UNSUBMITTED
        ]
        if never:
            log = [f"{len(never)} local jobs are not submitted any more"]
            self.book.write(entry.key, now=self.clock(), local_jobs=never, log=log)
        if not jobs:
            ended = replace(entry, outcome=report.failed(report.KILLED))
            self.book.write(
                entry.key, now=self.clock(), entry=ended, log=["ended before anything was submitted"]
            )
        # Earlier tries, too: one that seemed to be gone may have come back.
        alive = [handle for each in jobs if each.lives for handle in each.handles]
        if alive:
            farm.system.kill(alive)
