"""Permits that limit the grid jobs submitting or gathering at a time, which no matcher can do alone.

A matcher starts no more jobs than a throttle allows, but jobs begin to gather by themselves. Therefore each
one needs a permit first, and requested jobs count as submitting. Source: SAM-Grid, levels 1 and 2.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.gateway.configuration import scopes_of_queue
from pilotage.fabric.manager.grid_job import AttemptKey, GridJob, ManagerPhase, PulledGridJob


def is_gathering(grid_job: GridJob) -> bool:
    """Whether its output is being collected or delivered."""
    ended = grid_job.phase is ManagerPhase.ENDED and grid_job.output is not None
    return ended or grid_job.phase is ManagerPhase.GATHERING


@dataclass(slots=True)
class Permits:
    """Permits to gather and to pull; thread-safe: the manager and the pulling thread use it."""

    _limits: Mapping[str, int] | None = None  #: by scope; None: not fetched yet
    _here: dict[AttemptKey, str] = field(default_factory=dict)  #: queues of jobs that submit or gather
    _granted: dict[AttemptKey, str] = field(default_factory=dict)  #: may gather, until they have left
    _refused: dict[AttemptKey, str] = field(default_factory=dict)  #: waiting for a permit to gather
    _coming: dict[str, str] = field(default_factory=dict)  #: queue of each open request for a job
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def limit(self, limits: Mapping[str, int]) -> None:
        """Set the limits of submitting and gathering jobs, by `Site`, `Site/CE` or queue."""
        with self._turn:
            self._limits = dict(limits)

    def observe(self, grid_jobs: Sequence[GridJob]) -> None:
        """Note all grid jobs here; call in the pulling thread, or jobs just pulled would be dropped."""
        keys = {each.taken.key for each in grid_jobs}
        busy = (each for each in grid_jobs if each.phase is ManagerPhase.SUBMITTING or is_gathering(each))
        with self._turn:
            self._granted = {key: queue for key, queue in self._granted.items() if key in keys}
            self._refused = {key: queue for key, queue in self._refused.items() if key in keys}
            self._here = {each.taken.key: each.taken.queue for each in busy} | self._granted

    def may_gather(self, wants: PulledGridJob) -> bool:
        """Whether a grid job may begin to gather.

        A single one always may: a limit of 0 would otherwise keep it for ever.
        """
        with self._turn:
            key = wants.key
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
        """Whether one more grid job may come to a queue; if so, count the request until `came`.

        Jobs that wait to gather have priority.
        """
        with self._turn:
            there = [*(self._here | self._refused).values(), *self._coming.values()]
            if request_id not in self._coming and not self._room(there, queue, least=0):
                return False
            self._coming[request_id] = queue
            return True

    def expect_again(self, request_id: str, queue: str) -> None:
        """Count a request of an earlier process whose response is not known."""
        with self._turn:
            self._coming[request_id] = queue

    def is_coming(self, request_id: str) -> bool:
        """Whether a request is open and may have brought a job."""
        with self._turn:
            return request_id in self._coming

    def coming(self, queue: str) -> int:
        """Number of open requests for a queue."""
        with self._turn:
            return sum(each == queue for each in self._coming.values())

    def came(self, request_id: str, taken: Iterable[PulledGridJob]) -> None:
        """Close an answered request whose jobs are recorded."""
        with self._turn:
            self._here |= {each.key: each.queue for each in taken}
            self._coming.pop(request_id, None)

    def remove(self, taken: PulledGridJob) -> None:
        """Remove a grid job that has left."""
        with self._turn:
            for counted in (self._here, self._granted, self._refused):
                counted.pop(taken.key, None)

    def _room(self, there: Sequence[str], queue: str, *, least: int) -> bool:
        """Whether a queue and the scopes above it have room for one more; each limit is at least `least`."""
        above = scopes_of_queue(queue)
        limits = {scope: max(limit, least) for scope, limit in (self._limits or {}).items() if scope in above}
        return all(
            sum(scope in scopes_of_queue(each) for each in there) < limit for scope, limit in limits.items()
        )
