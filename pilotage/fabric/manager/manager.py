"""The job manager of a gateway: cycles over the grid jobs of each batch system, and their current status.

In a cycle each grid job is advanced a bit and none holds up the others: a failure concerns its own job only,
and a batch system that hangs is not called again in the same cycle. Gateways record new, cancelled and
finished grid jobs in the journal, which returns at once; one thread for each batch system calls
`advance_system` repeatedly for the slow work. Every action is recorded in the journal first, so a manager
that was killed continues from there.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from pilotage.fabric.batch.batch_system import BatchSystemAway, SubmissionRefused
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
#: Seconds of a cycle after which no other local job is submitted: polls and cancellations wait meanwhile.
SUBMITTING = 15.0


@dataclass(slots=True, kw_only=True)
class CycleTroubles:
    """The problems of one cycle of a batch system, by grid job."""

    problems: dict[AttemptKey, str] = field(default_factory=dict)
    _hangs: str = ""  #: the error, if the batch system hangs

    def attempt(self, act: Callable[[], None], *entries: GridJobEntry) -> None:
        """Perform an action for grid jobs unless their batch system hangs; the next cycle repeats failures.

        Only `StateUnusable` is raised: then the rest has to wait.
        """
        if self._hangs:
            self._note(self._hangs, entries)
            return
        try:
            act()
        except NoAnswer as error:
            self._hangs = str(error)
            self._note(str(error), entries)
        except (BatchSystemAway, SubmissionRefused, Away, Refused, UnfitJob, OSError) as error:
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

    def __init__(self, context: ManagerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.context = context
        self._clock = clock
        self._polling = Polling(context=context)

    @property
    def systems(self) -> list[str]:
        """The batch systems; and an empty name, for grid jobs of queues that are not served any more."""
        return ["", *sorted(self.context.systems)]

    @property
    def journal(self) -> Journal:
        """The records of its grid jobs."""
        return self.context.journal

    def grid_jobs(self) -> Sequence[GridJob]:
        """Status of all grid jobs except forgotten ones."""
        return [grid_job.grid_job_status(entry, local_jobs) for entry, local_jobs in self.journal.grid_jobs()]

    def is_refusing(self, queue: str, vo: str) -> bool:
        """Whether the batch system of a queue refused a whole grid job of the VO lately."""
        refused_at = self.context.refused_at.get((queue, fold(vo)))
        return refused_at is not None and elapsed_time() - refused_at < REFUSAL_PAUSE

    def measure_loads(self) -> None:
        """Measure the load of each batch system's host, where that is due and the host answers."""
        for system in self.context.systems.values():
            with suppress(BatchSystemAway):
                system.measure_load_if_due()

    def advance(self) -> None:
        """Run one cycle for each batch system."""
        for name in self.systems:
            self.advance_system(name)

    def advance_system(self, name: str) -> None:
        """Run one cycle over the grid jobs of a batch system; none of them holds up the others for long."""
        troubles = CycleTroubles()
        live = self._live(name)
        cancel = partial(polling.cancel_local_jobs, self.context)
        self._each((each for each in live if each.cancelled), cancel, troubles)
        submitting = [each for each in live if not each.cancelled]
        # In an order of chance: it is not always the same ones for which no time is left.
        submit = partial(self._submit, deadline=self._clock() + SUBMITTING)
        self._each(random.sample(submitting, len(submitting)), submit, troubles)
        if polled := [each for each in self._live(name) if name and not each.gathering]:
            troubles.attempt(partial(self._poll, name, polled, troubles), *polled)
        self._each(self._live(name), self._gather, troubles)
        self._each(self._entries(name), self._clean, troubles)
        if name:  # last: what the jobs need comes first, and a host that hangs is left alone
            troubles.attempt(self.context.systems[name].measure_load_if_due)
        for entry in self._entries(name):
            problem = troubles.problems.get(entry.key, "")
            if problem != entry.problem:
                log.warning("grid job %s: %s", entry.taken.name, problem or "goes on")
                self.journal.note_problem(entry.key, problem)

    def _each(
        self, entries: Iterable[GridJobEntry], act: Callable[[GridJobEntry], None], troubles: CycleTroubles
    ) -> None:
        for entry in entries:
            troubles.attempt(partial(act, entry), entry)

    def _submit(self, entry: GridJobEntry, deadline: float) -> None:
        self.context.system_of(entry)  # a queue that is not served any more holds it up
        submission.submit_local_jobs(self.context, entry, lambda: self._clock() < deadline)

    def _poll(self, name: str, polled: Sequence[GridJobEntry], troubles: CycleTroubles) -> None:
        troubles.problems.update(self._polling.poll(self.context.systems[name], polled))

    def _entries(self, name: str) -> list[GridJobEntry]:
        """The grid jobs of a batch system."""
        return [each for each in self.journal.entries() if self._system_name(each) == name]

    def _system_name(self, entry: GridJobEntry) -> str:
        queue = self.context.queues.get(entry.taken.queue)
        return "" if queue is None else queue.system

    def _live(self, name: str) -> list[GridJobEntry]:
        return [each for each in self._entries(name) if each.outcome is None]

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
