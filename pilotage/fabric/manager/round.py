"""One round of a job manager over all its grid jobs: each is taken a bit further, none holds up another."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pilotage.fabric.manager import shared_area
from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.cancelling import Cancelling
from pilotage.fabric.manager.gathering import Gathering
from pilotage.fabric.manager.grid_job import ENDED
from pilotage.fabric.manager.materialising import Materialising
from pilotage.fabric.manager.polling import Polling
from pilotage.fabric.manager.records import Entry, Key
from pilotage.fabric.manager.station import Habits, Station
from pilotage.fabric.manager.troubles import Troubles

log = logging.getLogger(__name__)


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
        troubles = Troubles()
        self._each(self._live(), self._to_the_batch_system, troubles)
        for name, entries in self._by_system():
            troubles.attempt(partial(self.polling.poll, self.station.farms[name], entries), name, *entries)
        self._each(self._live(), self._gather, troubles)
        self._each(self.book.entries(), self._clean, troubles)
        self._note(troubles.problems)

    def _each(self, entries: Iterable[Entry], act: Callable[[Entry], None], troubles: Troubles) -> None:
        for entry in entries:
            troubles.attempt(partial(act, entry), self._system(entry), entry)

    def _system(self, entry: Entry) -> str:
        outlet = self.station.outlets.get(entry.taken.queue)
        return "" if outlet is None else outlet.system

    def _to_the_batch_system(self, entry: Entry) -> None:
        farm = self.station.farm_of(entry)
        if entry.cancelled:
            self._cancelling.advance(entry, farm)
        else:
            self._materialising.advance(entry)

    def _live(self) -> list[Entry]:
        return [each for each in self.book.entries() if each.outcome is None]

    def _by_system(self) -> list[tuple[str, list[Entry]]]:
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self._live():
            if (name := self._system(entry)) and not entry.gathering:
                found[name].append(entry)
        return sorted(found.items())

    def _gather(self, entry: Entry) -> None:
        jobs = self.book.local_jobs(entry.key)
        if not jobs or entry.forgotten or any(each.state not in ENDED for each in jobs):
            return
        if not entry.gathering:
            if not self.station.may_gather(entry.taken):
                return
            self._gathering.begin(entry)
            entry = self._again(entry)
        farm = self.station.farm_of(entry)
        self._gathering.advance(entry, farm, shared_area.area_of(entry, farm, self.book.key))

    def _clean(self, entry: Entry) -> None:
        """Remove what is left of a grid job that nobody asks for any more."""
        if not entry.forgotten:
            return
        jobs = self.book.local_jobs(entry.key)
        if entry.outcome is None and any(each.state not in ENDED for each in jobs):
            return
        if entry.digest is not None:
            farm = self.station.farm_of(entry)
            handles = [handle for each in jobs if each.was_submitted for handle in each.handles]
            if handles:
                farm.system.forget(handles)
            shared_area.area_of(entry, farm, self.book.key).remove()
        self._gathering.remove(entry)
        self.book.remove(entry.key)

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
