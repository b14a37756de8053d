"""Delivery of ended grid jobs: the output first, then the outcome; then the manager may forget them.

Each step may be repeated: the service accepts an equal report again, and refuses a different one.
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
    """Delivers ended grid jobs, slowly if necessary; used by one thread."""

    service: Service
    manager: Manager
    leases: GatewayLeases
    permits: Permits

    def deliver(self) -> int:
        """Deliver all ended grid jobs; return the number delivered.

        Raises:
            Away: The service does not respond; the rest has to wait.
            StateUnusable: The journal cannot be read.
        """
        delivered, away = 0, None
        for each in self.manager.grid_jobs():
            try:
                delivered += each.phase is ManagerPhase.ENDED and self._one(each)
            except Away as error:  # perhaps only this output cannot be sent
                away = error
        if away is not None:
            raise away
        return delivered

    def _one(self, grid_job: GridJob) -> bool:
        lease = self.leases.get_lease(grid_job.taken)
        try:
            self._report(lease, grid_job)
        except Refused as error:
            if not error.ends_attempt:
                log.error("job %d cannot be finished: %s", grid_job.taken.job_id, error)  # noqa: TRY400 - theirs
                return False
            log.warning("job %d: the attempt is over: %s", grid_job.taken.job_id, error)
        self.manager.forget(grid_job.taken.job_id, grid_job.taken.epoch)
        self.permits.remove(grid_job.taken)
        self.leases.forget(grid_job.taken)
        return True

    def _report(self, lease: GridJobLease, grid_job: GridJob) -> None:
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
        """Send the output; return the report with any problem added."""
        if grid_job.output is None:
            return report
        try:
            with grid_job.output.open("rb") as archive:
                size = os.fstat(archive.fileno()).st_size
                self.service.deliver_output(grid_job.taken.lease, archive, size=size)
        except Refused as error:
            # A closed attempt may be a repetition: the same report is then accepted as before.
            return report if error.ends_attempt else report.without_output(str(error))
        except FileNotFoundError:
            return report.without_output("the archive is not there any more")
        return report

    def _last_news(self, grid_job: GridJob) -> None:
        """Store the last progress with the attempt; a failure does not prevent the final report."""
        try:
            self.service.heartbeat(grid_job.taken.lease, leases.heartbeat_body(grid_job))
        except (Away, Refused) as error:
            log.info("job %d: its last progress could not be sent: %s", grid_job.taken.job_id, error)
