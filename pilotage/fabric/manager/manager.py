"""The job manager of a gateway: one cycle over all its grid jobs, and their current status.

In a cycle each grid job is advanced a bit and none holds up the others: a failure concerns its own job only,
and a batch system that hangs is not called again in the same cycle. Gateways record new, cancelled and
finished grid jobs in the journal, which returns at once; one thread calls `advance` repeatedly for the slow
work. Every action is recorded in the journal first, so a manager that
was killed continues from there.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.manager import grid_job, output, polling, submission
from pilotage.fabric.manager.context import ManagerContext
from pilotage.fabric.manager.grid_job import ENDED, AttemptKey, GridJob, GridJobEntry
from pilotage.fabric.manager.job_types import UnfitJob
from pilotage.fabric.manager.journal import Journal, StateUnusable
from pilotage.fabric.manager.polling import Polling
from pilotage.fabric.pilot.service.heartbeat import elapsed_time
from pilotage.fabric.pilot.service.transport import Away, Refused
from requirements.values import fold

log = logging.getLogger(__name__)
#: Seconds without new grid jobs for a queue whose batch system refused one.
REFUSAL_PAUSE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleTroubles:
    """The problems of one cycle, by grid job."""

    problems: dict[AttemptKey, str] = field(default_factory=dict)
    _hanging: dict[str, str] = field(default_factory=dict)  #: by batch system that hangs, the error

    def attempt(self, act: Callable[[], None], system: str, *entries: GridJobEntry) -> None:
        """Perform an action for grid jobs unless their batch system hangs; the next cycle repeats failures.

        Only `StateUnusable` is raised: then the rest has to wait.
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
            log.exception("grid jobs %s: the cycle broke", ", ".join(each.taken.name for each in entries))
            self._note(f"a fault of the gateway: {error!r:.300}", entries)

    def _note(self, problem: str, entries: tuple[GridJobEntry, ...]) -> None:
        self.problems.update({entry.key: problem for entry in entries})


class Manager:
    """A job manager; one per gateway process. Every method raises `StateUnusable` as its journal does."""

    def __init__(self, context: ManagerContext) -> None:
        self.context = context
        self._polling = Polling(context=context)

    @property
    def journal(self) -> Journal:
        """The records of its grid jobs."""
        return self.context.journal

    def grid_jobs(self) -> Sequence[GridJob]:
        """Status of all grid jobs except forgotten ones."""
        return [
            grid_job.grid_job_status(each, self.journal.local_jobs(each.key))
            for each in self.journal.entries()
            if not each.forgotten
        ]

    def is_refusing(self, queue: str, vo: str) -> bool:
        """Whether the batch system of a queue refused a whole grid job of the VO lately."""
        refused_at = self.context.refused_at.get((queue, fold(vo)))
        return refused_at is not None and elapsed_time() - refused_at < REFUSAL_PAUSE

    def advance(self) -> None:
        """Run one cycle over all grid jobs; none of them holds up the others for long."""
        troubles = CycleTroubles()
        self._each(self._live(), self._submit_or_cancel, troubles)
        for name, entries in self._group_by_system():
            system = self.context.systems[name]
            troubles.attempt(partial(self._polling.poll, system, entries), name, *entries)
        self._each(self._live(), self._gather, troubles)
        self._each(self.journal.entries(), self._clean, troubles)
        self._note_problems(troubles.problems)

    def _each(
        self, entries: Iterable[GridJobEntry], act: Callable[[GridJobEntry], None], troubles: CycleTroubles
    ) -> None:
        for entry in entries:
            troubles.attempt(partial(act, entry), self._system_name(entry), entry)

    def _system_name(self, entry: GridJobEntry) -> str:
        queue = self.context.queues.get(entry.taken.queue)
        return "" if queue is None else queue.system

    def _live(self) -> list[GridJobEntry]:
        return [each for each in self.journal.entries() if each.outcome is None]

    def _group_by_system(self) -> list[tuple[str, list[GridJobEntry]]]:
        found: dict[str, list[GridJobEntry]] = defaultdict(list)
        for entry in self._live():
            if (name := self._system_name(entry)) and not entry.gathering:
                found[name].append(entry)
        return sorted(found.items())

    def _submit_or_cancel(self, entry: GridJobEntry) -> None:
        self.context.system_of(entry)  # a queue that is not served any more holds it up
        if entry.cancelled:
            polling.cancel_local_jobs(self.context, entry)
        else:
            submission.submit_local_jobs(self.context, entry)

    def _gather(self, entry: GridJobEntry) -> None:
        jobs = self.journal.local_jobs(entry.key)
        if not jobs or entry.forgotten or any(each.state not in ENDED for each in jobs):
            return
        if not entry.gathering:
            if not self.context.may_gather(entry.taken):
                return
            output.begin_gathering(self.context, entry)
            entry = next(
                each for each in self.journal.entries() if each.key == entry.key
            )  # may be cancelled now
        output.gather_outputs(self.context, entry)

    def _clean(self, entry: GridJobEntry) -> None:
        """Remove the files and records of a grid job whose end the service has acknowledged."""
        if not entry.forgotten:
            return
        jobs = self.journal.local_jobs(entry.key)
        if entry.outcome is None and any(each.state not in ENDED for each in jobs):
            return
        if entry.digest is not None:
            system = self.context.system_of(entry).system
            handles = [handle for each in jobs if each.was_submitted for handle in each.handles]
            if handles:
                system.forget(handles)
            self.context.area_of(entry).remove()
        output.output_store(self.context, entry).remove()
        self.journal.remove(entry.key)

    def _note_problems(self, problems: Mapping[AttemptKey, str]) -> None:
        for entry in self.journal.entries():
            problem = problems.get(entry.key, "")
            if problem != entry.problem:
                log.warning("grid job %s: %s", entry.taken.name, problem or "goes on")
                self.journal.note_problem(entry.key, problem)
