"""The job manager of a gateway: what surrounds it gives it grid jobs, and sees how they stand.

Each call answers at once; the long work is done by `advance`, which one thread calls again and again. All
that is known is in the book before it is acted upon: a manager that was killed is made anew and goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.grid_job import GridJob, Taken
from pilotage.fabric.manager.polling import Polling
from pilotage.fabric.manager.records import Key
from pilotage.fabric.manager.round import Round
from pilotage.fabric.manager.standing import standing
from pilotage.fabric.manager.station import Habits, Station


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class Manager:
    """One per gateway process and directory."""

    station: Station
    habits: Habits
    book: Book
    clock: Callable[[], datetime] = _utc_now
    _round: Round = field(init=False)

    def __post_init__(self) -> None:
        polling = Polling(habits=self.habits, book=self.book, clock=self.clock)
        self._round = Round(
            station=self.station, habits=self.habits, book=self.book, clock=self.clock, polling=polling
        )

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
        self._round.go()

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
