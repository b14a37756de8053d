"""How many grid jobs may be submitting or gathering here at a time: what no matcher can see to alone.

A matcher lets no more jobs in than a throttle allows, but jobs begin to gather by themselves. So each one
asks here first, and what is about to come in is counted as submitting. Source: SAM-Grid, levels 1 and 2.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.gateway.configuration import scopes_of_queue
from pilotage.fabric.manager.grid_job import GridJob, ManagerPhase, PulledGridJob

#: A grid job: its number and that of the attempt.
Key = tuple[int, int]


def permit_key(taken: PulledGridJob) -> Key:
    """Which grid job it is."""
    return (taken.job_id, taken.epoch)


def is_gathering(grid_job: GridJob) -> bool:
    """Whether its output is put together, or on its way to the service."""
    ended = grid_job.phase is ManagerPhase.ENDED and grid_job.output is not None
    return ended or grid_job.phase is ManagerPhase.GATHERING


@dataclass(slots=True)
class Permits:
    """Safe to use from several threads: the manager's asks to gather while work is being pulled."""

    _limits: Mapping[str, int] | None = None  #: by scope; None: nobody has told us yet
    _here: dict[Key, str] = field(default_factory=dict)  #: submitting or gathering, or so of late: queues
    _granted: dict[Key, str] = field(default_factory=dict)  #: may gather, until they have left
    _refused: dict[Key, str] = field(default_factory=dict)  #: those that wait for a permit
    _coming: dict[str, str] = field(default_factory=dict)  #: queue of each request that may bring a job
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def limit(self, limits: Mapping[str, int]) -> None:
        """From now on these hold: jobs that are submitting or gathering, by `Site`, `Site/CE` or queue."""
        with self._turn:
            self._limits = dict(limits)

    def observe(self, grid_jobs: Sequence[GridJob]) -> None:
        """All that is here; by the thread that pulls work, or it would forget what that has just taken."""
        keys = {permit_key(each.taken) for each in grid_jobs}
        busy = (each for each in grid_jobs if each.phase is ManagerPhase.SUBMITTING or is_gathering(each))
        with self._turn:
            self._granted = {key: queue for key, queue in self._granted.items() if key in keys}
            self._refused = {key: queue for key, queue in self._refused.items() if key in keys}
            self._here = {permit_key(each.taken): each.taken.queue for each in busy} | self._granted

    def may_gather(self, wants: PulledGridJob) -> bool:
        """Whether a grid job may begin to gather.

        One may always where no other does, or a limit of 0 would keep what is there for ever.
        """
        with self._turn:
            key = permit_key(wants)
            others = [queue for each, queue in self._here.items() if each != key]
            if self._limits is None or not self._room(
                [*others, *self._coming.values()], wants.queue, least=1
            ):
                self._refused[key] = wants.queue
                return False
            self._refused.pop(key, None)
            self._here[key] = self._granted[key] = wants.queue
            return True

    def expect(self, request_id: str, queue: str) -> bool:
        """Whether one more grid job may come to a queue; if so it is counted until `came`.

        Those that wait to gather come first.
        """
        with self._turn:
            there = [*(self._here | self._refused).values(), *self._coming.values()]
            if request_id not in self._coming and not self._room(there, queue, least=0):
                return False
            self._coming[request_id] = queue
            return True

    def expect_again(self, request_id: str, queue: str) -> None:
        """Count a request that was made before we were started, whose answer nobody has seen."""
        with self._turn:
            self._coming[request_id] = queue

    def is_coming(self, request_id: str) -> bool:
        """Whether a request may have brought a job that nobody has seen."""
        with self._turn:
            return request_id in self._coming

    def coming(self, queue: str) -> int:
        """How many requests for a queue may have done so."""
        with self._turn:
            return sum(each == queue for each in self._coming.values())

    def came(self, request_id: str, taken: Iterable[PulledGridJob]) -> None:
        """A request was answered, and what it brought is recorded."""
        with self._turn:
            self._here |= {permit_key(each): each.queue for each in taken}
            self._coming.pop(request_id, None)

    def left(self, taken: PulledGridJob) -> None:
        """A grid job is not here any more."""
        with self._turn:
            for counted in (self._here, self._granted, self._refused):
                counted.pop(permit_key(taken), None)

    def _room(self, there: Sequence[str], queue: str, *, least: int) -> bool:
        """Whether one more fits at a queue and all that is above it, of which each takes `least` at least."""
        above = scopes_of_queue(queue)
        limits = {scope: max(limit, least) for scope, limit in (self._limits or {}).items() if scope in above}
        return all(
            sum(scope in scopes_of_queue(each) for each in there) < limit for scope, limit in limits.items()
        )
