"""Delivering what has ended: the output first, then the outcome, then it may be forgotten.

Each step may be repeated: the service answers the same report as the first time, and refuses another one.
"""

import logging
import os
from dataclasses import dataclass

from pilotage.fabric.gateway import leases
from pilotage.fabric.gateway.leases import GatewayLeases, GridJobLease
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.manager.grid_job import GridJob, ManagerPhase
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.service_client import Service
from pilotage.fabric.pilot.service.transport import Away, Refused

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class OutputDelivery:
    """Used by one thread, which may take its time."""

    service: Service
    manager: Manager
    leases: GatewayLeases
    permits: Permits

    def deliver(self) -> int:
        """Deliver all that has ended; the number of grid jobs that are told of.

        Raises:
            Away: The service does not answer; the rest has to wait.
            StateUnusable: It is not known what has ended.
        """
        told, away = 0, None
        for each in self.manager.grid_jobs():
            try:
                told += each.phase is ManagerPhase.ENDED and self._one(each)
            except Away as error:  # it may be this output alone that does not get through
                away = error
        if away is not None:
            raise away
        return told

    def _one(self, grid_job: GridJob) -> bool:
        lease = self.leases.of(grid_job.taken)
        try:
            self._tell(lease, grid_job)
        except Refused as error:
            if not error.ends_attempt:
                log.error("job %d cannot be finished: %s", grid_job.taken.job_id, error)  # noqa: TRY400 - theirs
                return False
            log.warning("job %d: the attempt is over: %s", grid_job.taken.job_id, error)
        self.manager.forget(grid_job.taken.job_id, grid_job.taken.epoch)
        self.permits.left(grid_job.taken)
        self.leases.forget(grid_job.taken)
        return True

    def _tell(self, lease: GridJobLease, grid_job: GridJob) -> None:
        report = grid_job.outcome
        if report is None or lease.closed:
            return
        with lease.turn:
            if not lease.started:
                self.leases.begin_or_beat(lease, grid_job)
        # Heartbeats go on while the output is sent.
        report = self._with_output(grid_job, report)
        with lease.turn:
            self._last_news(grid_job)
            report = self.service.finish(lease.taken.lease, report)
        log.info("job %d: %s %s", lease.taken.job_id, report.status, report.minor_status)

    def _with_output(self, grid_job: GridJob, report: Report) -> Report:
        """Send the output; the report with what became of it."""
        if grid_job.output is None:
            return report
        try:
            with grid_job.output.open("rb") as archive:
                size = os.fstat(archive.fileno()).st_size
                self.service.deliver_output(grid_job.taken.lease, archive, size=size)
        except Refused as error:
            # Of a closed attempt this may be the second time: then its report is answered as before.
            return report if error.ends_attempt else report.without_output(str(error))
        except FileNotFoundError:
            return report.without_output("the archive is not there any more")
        return report

    def _last_news(self, grid_job: GridJob) -> None:
        """How far it came stays with the attempt; that it cannot be told is no reason not to finish."""
        try:
            self.service.heartbeat(grid_job.taken.lease, leases.heartbeat_body(grid_job))
        except (Away, Refused) as error:
            log.info("job %d: its last progress was not told: %s", grid_job.taken.job_id, error)
