"""The job manager of a gateway: one round over all its grid jobs, and the calls of its gateway.

In a round each grid job is advanced a bit and none holds up the others: a failure concerns its own job only,
and a batch system that hangs is not called again in the same round. The calls return at once; one thread
calls `advance` repeatedly for the slow work. Every action is recorded in the journal first, so a manager that
was killed continues from there.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.manager import shared_area
from pilotage.fabric.manager.context import ManagerContext, ManagerOptions
from pilotage.fabric.manager.errors import StateUnusable, UnfitJob
from pilotage.fabric.manager.grid_job import ENDED, GridJob, PulledGridJob
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.output import OutputGathering
from pilotage.fabric.manager.polling import Cancelling, Polling
from pilotage.fabric.manager.records import AttemptKey, GridJobEntry
from pilotage.fabric.manager.status import grid_job_status
from pilotage.fabric.manager.submission import LocalJobSubmission
from pilotage.fabric.pilot.service.transport import Away, Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleTroubles:
    """The problems of one round, by grid job."""

    problems: dict[AttemptKey, str] = field(default_factory=dict)
    _hanging: dict[str, str] = field(default_factory=dict)  #: by batch system that hangs, the error

    def attempt(self, act: Callable[[], None], system: str, *entries: GridJobEntry) -> None:
        """Perform an action for grid jobs unless their batch system hangs; the next round repeats failures.

        Args:
            act: The action.
            system: Name of the batch system.
            entries: The grid jobs that are held up if it fails.

        Raises:
            StateUnusable: The rest has to wait.
        """
        if system in self._hanging:
            self._note(self._hanging[system], entries)
            return
        try:
            act()
        except NoAnswer as error:
            self._hanging[system] = str(error)
            self._note(str(error), entries)
        except (BatchSystemAway, Away, Refused, UnfitJob, OSError) as error:
            self._note(str(error), entries)
        except StateUnusable:
            raise
        except Exception as error:  # a bug must not hold up the others
            log.exception("grid jobs %s: the round broke", ", ".join(each.taken.name for each in entries))
            self._note(f"a fault of the gateway: {error!r:.300}", entries)

    def _note(self, problem: str, entries: tuple[GridJobEntry, ...]) -> None:
        self.problems.update({entry.key: problem for entry in entries})


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerCycle:
    """One round of a manager: its steps in order."""

    station: ManagerContext
    habits: ManagerOptions
    book: Journal
    clock: Callable[[], datetime]
    polling: Polling

    def go(self) -> None:
        """Run the round.

        Raises:
            StateUnusable: The rest has to wait for the next round.
        """
        troubles = CycleTroubles()
        self._each(self._live(), self._submit_or_cancel, troubles)
        for name, entries in self._group_by_system():
            troubles.attempt(partial(self.polling.poll, self.station.farms[name], entries), name, *entries)
        self._each(self._live(), self._gather, troubles)
        self._each(self.book.entries(), self._clean, troubles)
        self._note(troubles.problems)

    def _each(
        self, entries: Iterable[GridJobEntry], act: Callable[[GridJobEntry], None], troubles: CycleTroubles
    ) -> None:
        for entry in entries:
            troubles.attempt(partial(act, entry), self._system(entry), entry)

    def _system(self, entry: GridJobEntry) -> str:
        outlet = self.station.outlets.get(entry.taken.queue)
        return "" if outlet is None else outlet.system

    def _submit_or_cancel(self, entry: GridJobEntry) -> None:
        farm = self.station.farm_of(entry)
        if entry.cancelled:
            self._cancelling.advance(entry, farm)
        else:
            self._materialising.advance(entry)

    def _live(self) -> list[GridJobEntry]:
        return [each for each in self.book.entries() if each.outcome is None]

    def _group_by_system(self) -> list[tuple[str, list[GridJobEntry]]]:
        found: dict[str, list[GridJobEntry]] = defaultdict(list)
        for entry in self._live():
            if (name := self._system(entry)) and not entry.gathering:
                found[name].append(entry)
        return sorted(found.items())

    def _gather(self, entry: GridJobEntry) -> None:
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

    def _clean(self, entry: GridJobEntry) -> None:
        """Remove the files and records of a grid job whose end the service has acknowledged."""
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

    def _again(self, entry: GridJobEntry) -> GridJobEntry:
        return next(each for each in self.book.entries() if each.key == entry.key)

    def _note(self, problems: Mapping[AttemptKey, str]) -> None:
        for entry in self.book.entries():
            problem = problems.get(entry.key, "")
            if problem != entry.problem:
                log.warning("grid job %s: %s", entry.taken.name, problem or "goes on")
                self.book.note_problem(entry.key, problem)

    @property
    def _materialising(self) -> LocalJobSubmission:
        return LocalJobSubmission(station=self.station, habits=self.habits, book=self.book, clock=self.clock)

    @property
    def _cancelling(self) -> Cancelling:
        return Cancelling(book=self.book, clock=self.clock)

    @property
    def _gathering(self) -> OutputGathering:
        return OutputGathering(habits=self.habits, book=self.book, clock=self.clock)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class Manager:
    """A job manager; one per gateway process and directory."""

    station: ManagerContext
    habits: ManagerOptions
    book: Journal
    clock: Callable[[], datetime] = _utc_now
    _round: ManagerCycle = field(init=False)

    def __post_init__(self) -> None:
        polling = Polling(habits=self.habits, book=self.book, clock=self.clock)
        self._round = ManagerCycle(
            station=self.station, habits=self.habits, book=self.book, clock=self.clock, polling=polling
        )

    def take(self, taken: PulledGridJob) -> None:
        """Record a grid job before any action for it; the same attempt again changes nothing.

        Raises:
            StateUnusable: It is not recorded.
        """
        self.book.take(taken, self.clock())

    def cancel(self, job_id: int, epoch: int) -> None:
        """Cancel a grid job: its local jobs are killed, and their output is gathered.

        Raises:
            StateUnusable: That is not recorded.
        """
        self.book.cancel(AttemptKey(job_id, epoch), self.clock())

    def forget(self, job_id: int, epoch: int) -> None:
        """Record that the service has acknowledged the end of a grid job; later rounds remove its files.

        Raises:
            StateUnusable: That is not recorded.
        """
        self.book.forget(AttemptKey(job_id, epoch))

    def advance(self) -> None:
        """Run one round over all grid jobs; none of them holds up the others for long.

        Raises:
            StateUnusable: The rest of the round has to wait.
        """
        self._round.go()

    def grid_jobs(self) -> Sequence[GridJob]:
        """Status of all grid jobs except forgotten ones.

        Raises:
            StateUnusable: The journal cannot be read.
        """
        return [
            grid_job_status(each, self.book.local_jobs(each.key))
            for each in self.book.entries()
            if not each.forgotten
        ]
