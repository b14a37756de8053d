"""One round of a job manager over all its grid jobs: each is taken a bit further, none holds up another."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.manager import shared_area
from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.cancelling import Cancelling
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.gathering import Gathering
from pilotage.fabric.manager.grid_job import ENDED, GridJob, Phase
from pilotage.fabric.manager.materialising import Materialising
from pilotage.fabric.manager.polling import Polling
from pilotage.fabric.manager.records import Entry, Key
from pilotage.fabric.manager.standing import standing
from pilotage.fabric.manager.station import Farm, Habits, Station
from pilotage.fabric.pilot.transport import Away, Refused

log = logging.getLogger(__name__)

#: Phases that count against the permit to gather.
_BUSY = frozenset({Phase.SUBMITTING, Phase.GATHERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The acts of a round, in their order."""

    station: Station
    habits: Habits
    book: Book
    clock: Callable[[], datetime]
    polling: Polling

    def go(self) -> None:
        """Do it.

        Raises:
            StateUnusable: The rest has to wait for the next one.
        """
        problems: dict[Key, str] = {}
        for entry in self._live():
            with _held_up(problems, entry):
                self._to_the_batch_system(entry)
        for farm, entries in self._by_farm():
            with _held_up(problems, *entries):
                self.polling.poll(farm, entries)
        for entry in self._live():
            with _held_up(problems, entry):
                self._gather(entry)
        for entry in self.book.entries():
            with _held_up(problems, entry):
                self._clean(entry)
        self._note(problems)

    def _to_the_batch_system(self, entry: Entry) -> None:
        if entry.cancelled:
            self._cancelling.advance(entry, self.station.farm_of(entry))
        else:
            self._materialising.advance(entry)

    def _live(self) -> list[Entry]:
        return [each for each in self.book.entries() if each.outcome is None]

    def _by_farm(self) -> list[tuple[Farm, list[Entry]]]:
        of_farm: dict[str, list[Entry]] = defaultdict(list)
        for entry in self._live():
            outlet = self.station.outlets.get(entry.taken.queue)
            if outlet is not None and not entry.gathering:
                of_farm[outlet.system].append(entry)
        return [(self.station.farms[name], entries) for name, entries in sorted(of_farm.items())]

    def _gather(self, entry: Entry) -> None:
        jobs = self.book.local_jobs(entry.key)
        if not jobs or any(each.state not in ENDED for each in jobs):
            return
        if not entry.gathering:
            if not self.station.may_gather(entry.taken, self._busy(entry.key)):
                return
            self._gathering.begin(entry)
            entry = self._again(entry)
        farm = self.station.farm_of(entry)
        self._gathering.advance(entry, farm, shared_area.area_of(entry, farm, self.book.key))

    def _clean(self, entry: Entry) -> None:
        """Remove what is left of a grid job that nobody asks for any more."""
        jobs = self.book.local_jobs(entry.key)
        if not entry.forgotten or (entry.outcome is None and any(each.state not in ENDED for each in jobs)):
            return
        if entry.packed:
            farm = self.station.farm_of(entry)
            handles = [handle for each in jobs if each.was_submitted for handle in each.handles]
            if handles:
                farm.system.forget(handles)
            shared_area.area_of(entry, farm, self.book.key).remove()
        self._gathering.remove(entry)
        self.book.remove(entry.key)

    def _busy(self, but: Key) -> Sequence[GridJob]:
        others = [each for each in self.book.entries() if each.key != but]
        found = (standing(each, self.book.local_jobs(each.key)) for each in others)
        return [each for each in found if each.phase in _BUSY]

    def _again(self, entry: Entry) -> Entry:
        return next(each for each in self.book.entries() if each.key == entry.key)

    def _note(self, problems: Mapping[Key, str]) -> None:
        for entry in self.book.entries():
            problem = problems.get(entry.key, "")
            if problem != entry.problem:
                log.warning("grid job %s: %s", entry.taken.name, problem or "goes on")
                self.book.note_problem(entry.key, problem)

    @property
    def _materialising(self) -> Materialising:
        return Materialising(station=self.station, habits=self.habits, book=self.book, clock=self.clock)

    @property
    def _cancelling(self) -> Cancelling:
        return Cancelling(book=self.book, clock=self.clock)

    @property
    def _gathering(self) -> Gathering:
        return Gathering(habits=self.habits, book=self.book, clock=self.clock)


@contextmanager
def _held_up(problems: dict[Key, str], *entries: Entry) -> Iterator[None]:
    """Remember what holds grid jobs up, and go on with the others; the next round tries again."""
    try:
        yield
    except (BatchSystemAway, Away, Refused, UnfitJob, OSError) as error:
        problems.update({entry.key: str(error) for entry in entries})
