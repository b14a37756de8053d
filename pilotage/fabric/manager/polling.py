"""How the local jobs of all grid jobs stand: asked of each batch system by one query, and of marks."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pilotage.fabric.batch.batch_system import ENDED, State
from pilotage.fabric.batch.batch_system import Report as Lookup
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.manager import looking, shared_area
from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.looking import Seen
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.shared_area import SharedArea
from pilotage.fabric.manager.station import Farm, Habits
from pilotage.fabric.runner import marks


@dataclass(slots=True, kw_only=True)
class Polling:
    """The manager's eye."""

    habits: Habits
    book: Book
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic  #: seconds
    _ended_at: dict[str, float] = field(default_factory=dict)  #: by stamp, when that was seen first

    def poll(self, farm: Farm, entries: Sequence[Entry]) -> None:
        """Take up what happened to the local jobs of some grid jobs of one batch system.

        Raises:
            NoAnswer: Nothing is known.
            BatchSystemAway: The marks cannot be read now.
        """
        of_entry = {
            entry.key: [job for job in self.book.local_jobs(entry.key) if job.lives] for entry in entries
        }
        jobs = [job for some in of_entry.values() for job in some]
        if not jobs:
            return
        lookups = farm.system.status([job.handle for job in jobs])
        unknown = next((each.message for each in lookups.values() if each.state is State.UNKNOWN), None)
        if unknown is not None:
            raise NoAnswer(unknown)
        areas = {entry.key: shared_area.area_of(entry, farm, self.book.key) for entry in entries}
        # Marks are looked at after the batch system: what it says has ended has left them.
        said = self._marks(farm, [(job, areas[job.key]) for job in jobs if _may_have_marks(job, lookups)])
        for entry in entries:
            self._take_up(
                farm,
                areas[entry.key],
                entry,
                [_seen(job, areas[entry.key], lookups, said) for job in of_entry[entry.key]],
            )

    def _marks(self, farm: Farm, jobs: Sequence[tuple[LocalJob, SharedArea]]) -> Mapping[str, str]:
        names = [area.mark(job, name) for job, area in jobs for name in (marks.NEWS, marks.END)]
        return shared_area.contents(farm, names)

    def _take_up(self, farm: Farm, area: SharedArea, entry: Entry, seen: Sequence[Seen]) -> None:
        changed: list[LocalJob] = []
        log: list[str] = []
        for each in seen:
            if self._has_to_settle(each, entry, area):
                continue
            self._ended_at.pop(each.job.stamp, None)
            job, line = looking.judged(each, entry, self.habits)
            if each.lookup.state is State.GONE:
                job, line = self._disarmed(farm, each.job, job, line)
            if job != each.job:
                changed.append(job)
            log += [line] * bool(line)
        if changed or log:
            self.book.write(entry.key, now=self.clock(), local_jobs=changed, log=log)

    def _has_to_settle(self, seen: Seen, entry: Entry, area: SharedArea) -> bool:
        """Whether marks may still come to light: a shared directory shows them late, or is away."""
        if seen.end or seen.lookup.state not in ENDED:
            return False
        if entry.cancelled and seen.job.state is not LocalState.RUNNING:
            return False
        since = self._ended_at.setdefault(seen.job.stamp, self.monotonic())
        if seen.lookup.state is not State.GONE and self.monotonic() - since < self.habits.settle:
            return True
        return not entry.cancelled and not area.is_there

    def _disarmed(self, farm: Farm, before: LocalJob, after: LocalJob, line: str) -> tuple[LocalJob, str]:
        """See to it that what is gone comes to nothing, before it is submitted again."""
        if after.stamp != before.stamp:
            farm.system.kill([before.handle])
            farm.system.forget([before.handle])
        elif after.state is LocalState.UNSUBMITTED and (found := farm.system.find([before.stamp])):
            reference = found[before.stamp][0]
            adopted = replace(before, state=LocalState.WAITING, reference=reference, was_submitted=True)
            return adopted, f"local job {before.number}: found as {reference}, {before.stamp}"
        return after, line


def _may_have_marks(job: LocalJob, lookups: Mapping[str, Lookup]) -> bool:
    return lookups[job.stamp].state is not State.WAITING


def _seen(job: LocalJob, area: SharedArea, lookups: Mapping[str, Lookup], said: Mapping[str, str]) -> Seen:
    return Seen(
        job=job,
        lookup=lookups[job.stamp],
        news=said.get(area.mark(job, marks.NEWS), ""),
        end=said.get(area.mark(job, marks.END), ""),
    )
