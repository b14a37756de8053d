"""Leases of grid jobs: begun, kept alive with news of how far the jobs are, and ended with their outcome.

One thread keeps them, another delivers outputs, which may take long; a lease has a lock, so that nobody
speaks for an attempt while it is being finished.
"""

import logging
import random
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotage.fabric.gateway import news
from pilotage.fabric.gateway.permits import Key, key_of
from pilotage.fabric.gateway.summary import Summary
from pilotage.fabric.manager.grid_job import GridJob, Taken
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.heart import KILL
from pilotage.fabric.pilot.service import News, Service
from pilotage.fabric.pilot.transport import Away, Refused

log = logging.getLogger(__name__)

#: Unanswered in a row, after which nobody else is told of.
_AWAY = 3


@dataclass(slots=True)
class Lease:
    """The hold of a grid job, as far as this process knows."""

    taken: Taken
    started: bool = False
    closed: bool = False  #: nobody wants to hear of it any more
    told_to_end: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, kw_only=True)
class Leases:
    """All that this process holds; every method raises `Away` when the service does not answer."""

    service: Service
    manager: Manager
    heartbeat_seconds: float | None = None  #: how often the service wants to hear from us
    _held: dict[Key, Lease] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def of(self, taken: Taken) -> Lease:
        """The lease of a grid job."""
        with self._turn:
            return self._held.setdefault(key_of(taken), Lease(taken))

    def forget(self, taken: Taken) -> None:
        """It has ended, and the service knows."""
        with self._turn:
            self._held.pop(key_of(taken), None)

    def keep(self, grid_jobs: Sequence[GridJob], summary: Summary) -> None:
        """Tell of each grid job how far it is, and hear what is wanted of it.

        One whose news do not get through keeps no others from being heard; some in a row mean that the
        service is away. They come in any order, so that it is not always the same ones.
        """
        in_a_row = 0
        for each in random.sample(grid_jobs, len(grid_jobs)):
            try:
                self._keep(each, summary)
                in_a_row = 0
            except Away as error:
                in_a_row += 1
                if in_a_row == min(_AWAY, len(grid_jobs)):
                    raise
                summary.problems.append(f"job {each.taken.job_id}: {error}")

    def _keep(self, grid_job: GridJob, summary: Summary) -> None:
        lease = self.of(grid_job.taken)
        with lease.turn:
            if not lease.closed:
                self._tell(lease, grid_job, summary)

    def begin(self, taken: Sequence[Taken], summary: Summary) -> None:
        """Say of grid jobs that were just recorded that they are here."""
        for each in taken:
            lease = self.of(each)
            with lease.turn:
                self._tell(lease, GridJob(taken=each, phase=news.FIRST), summary)

    def _tell(self, lease: Lease, grid_job: GridJob, summary: Summary) -> None:
        """The next word on an attempt; the lease is locked.

        A word that is refused for what it says is none of the grid job's faults: the next one may do.
        """
        try:
            self._obey(self.begin_or_beat(lease, grid_job), lease, summary)
        except Refused as error:
            if error.ends_attempt:
                self._close(lease, error, summary)
            else:
                summary.problems.append(f"job {lease.taken.job_id}: {error}")

    def begin_or_beat(self, lease: Lease, grid_job: GridJob) -> News:
        """Start the attempt if this process has not done so, else a heartbeat.

        Raises:
            Away, Refused: The service does not take it.
        """
        if lease.started:
            return self.service.heartbeat(lease.taken.lease, news.of(grid_job))
        answer = self.service.start(lease.taken.lease, {"host": socket.gethostname()})
        lease.started = True
        return answer

    def _obey(self, answer: News, lease: Lease, summary: Summary) -> None:
        self.heartbeat_seconds = answer.heartbeat_seconds or self.heartbeat_seconds
        if KILL in answer.commands:
            self.manager.cancel(lease.taken.job_id, lease.taken.epoch)
            summary.killed += 1
            if not lease.told_to_end:
                log.warning("job %d: the service wants it to end", lease.taken.job_id)
            lease.told_to_end = True

    def _close(self, lease: Lease, why: Refused, summary: Summary) -> None:
        """Its local jobs run for nobody."""
        self.manager.cancel(lease.taken.job_id, lease.taken.epoch)
        lease.closed = True
        summary.lost += 1
        log.warning("job %d: the attempt is closed, its local jobs are ended: %s", lease.taken.job_id, why)
