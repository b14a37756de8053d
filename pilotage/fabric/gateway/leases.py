"""Leases of grid jobs: start them, send heartbeats with progress, and follow the service's commands.

One thread keeps the leases while another delivers outputs, which may take long; each lease has a lock, so
that no heartbeat is sent while its attempt is being finished.
"""

import logging
import random
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.gateway.cycle_summary import GatewaySummary
from pilotage.fabric.gateway.permits import Key, permit_key
from pilotage.fabric.manager.grid_job import GridJob, ManagerPhase, PulledGridJob
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.service.heartbeat import KILL
from pilotage.fabric.pilot.service.service_client import News, Service
from pilotage.fabric.pilot.service.transport import Away, Refused
from pilotage.fabric.runner.progress import Progress

#: Phase of a grid job that was just pulled.
FIRST = ManagerPhase.SUBMITTING
#: Larger numbers are not exact in every JSON reader; the service refuses them.
_LARGEST = 2**53
#: Maximum characters that the service accepts.
_LONGEST = 2000
_LONGEST_TAIL = 16_384


def heartbeat_body(grid_job: GridJob) -> Mapping[str, object]:
    """The content of a heartbeat."""
    return {
        "progress": payload.printable(_progress_text(grid_job), _LONGEST),
        "output_tail": payload.printable(grid_job.tail[-_LONGEST_TAIL:], _LONGEST_TAIL),
        "phases": [_phase(each, grid_job.taken) for each in grid_job.progress],
        "local_jobs": {state.value: number for state, number in grid_job.local.items() if number},
    }


def _phase(phase: Progress, taken: PulledGridJob) -> Mapping[str, object]:
    """One phase; its unit is events if its total equals the number of events of the job."""
    unit = "events" if phase.of == taken.description.get("Events") else ""
    done, of = min(phase.done, _LARGEST), min(phase.of, _LARGEST)
    return {"name": phase.name, "done": done, "of": of, "unit": unit}


def _progress_text(grid_job: GridJob) -> str:
    said = [f"{grid_job.phase}, {grid_job.aggregate}"]
    said += [f"{number} local jobs {state}" for state, number in sorted(grid_job.local.items()) if number]
    said += [str(each) for each in grid_job.progress]
    return "; ".join([*said, *filter(None, [grid_job.problem])])


log = logging.getLogger(__name__)

#: Failures in a row after which the service counts as away.
_AWAY = 3


@dataclass(slots=True)
class GridJobLease:
    """State of a lease in this process."""

    taken: PulledGridJob
    started: bool = False
    closed: bool = False  #: the attempt is closed: reports are not accepted any more
    told_to_end: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, kw_only=True)
class GatewayLeases:
    """All leases of this process; every method raises `Away` when the service does not respond."""

    service: Service
    manager: Manager
    heartbeat_seconds: float | None = None  #: interval that the service wishes
    _held: dict[Key, GridJobLease] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def get_lease(self, taken: PulledGridJob) -> GridJobLease:
        """The lease of a grid job."""
        with self._turn:
            return self._held.setdefault(permit_key(taken), GridJobLease(taken))

    def forget(self, taken: PulledGridJob) -> None:
        """Drop the lease of a grid job that has ended and is acknowledged."""
        with self._turn:
            self._held.pop(permit_key(taken), None)

    def keep(self, grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> None:
        """Send a heartbeat for each grid job, and follow the commands in the responses.

        One that fails does not stop the others, but several failures in a row mean that the service is
        away. The order is random, so that it is not always the same jobs that are reached.
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

    def _keep(self, grid_job: GridJob, summary: GatewaySummary) -> None:
        lease = self.get_lease(grid_job.taken)
        with lease.turn:
            if not lease.closed:
                self._tell(lease, grid_job, summary)

    def begin(self, taken: Sequence[PulledGridJob], summary: GatewaySummary) -> None:
        """Start the leases of grid jobs that were just recorded."""
        for each in taken:
            lease = self.get_lease(each)
            with lease.turn:
                self._tell(lease, GridJob(taken=each, phase=FIRST), summary)

    def _tell(self, lease: GridJobLease, grid_job: GridJob, summary: GatewaySummary) -> None:
        """Start or continue an attempt; the caller holds the lock of the lease.

        A refusal because of a report's content does not end the attempt: the next report may be accepted.
        """
        try:
            self._obey(self.begin_or_beat(lease, grid_job), lease, summary)
        except Refused as error:
            if error.ends_attempt:
                self._close(lease, error, summary)
            else:
                summary.problems.append(f"job {lease.taken.job_id}: {error}")

    def begin_or_beat(self, lease: GridJobLease, grid_job: GridJob) -> News:
        """Start the attempt if this process has not done so, else send a heartbeat.

        Raises:
            Away, Refused: The service does not accept it.
        """
        if lease.started:
            return self.service.heartbeat(lease.taken.lease, heartbeat_body(grid_job))
        answer = self.service.start(lease.taken.lease, {"host": socket.gethostname()})
        lease.started = True
        return answer

    def _obey(self, answer: News, lease: GridJobLease, summary: GatewaySummary) -> None:
        self.heartbeat_seconds = answer.heartbeat_seconds or self.heartbeat_seconds
        if KILL in answer.commands:
            self.manager.cancel(lease.taken.job_id, lease.taken.epoch)
            summary.killed += 1
            if not lease.told_to_end:
                log.warning("job %d: the service wants it to end", lease.taken.job_id)
            lease.told_to_end = True

    def _close(self, lease: GridJobLease, why: Refused, summary: GatewaySummary) -> None:
        """Cancel a grid job whose attempt is closed: the results of its local jobs are of no use."""
        self.manager.cancel(lease.taken.job_id, lease.taken.epoch)
        lease.closed = True
        summary.lost += 1
        log.warning("job %d: the attempt is closed, its local jobs are ended: %s", lease.taken.job_id, why)
