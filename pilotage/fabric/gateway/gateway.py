"""A gateway: cycles with the service, of delivering output, and of its job manager's work by batch system.

Each runs in a thread of its own, so that none waits for another: a batch system that hangs or a long upload
must not delay heartbeats. All state that has to outlive the process is in the manager's journal.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from pilotage.fabric.cycle_summaries import GatewaySummary, Presence
from pilotage.fabric.gateway.advertising import GatewayAdvertising
from pilotage.fabric.gateway.leases import GatewayLeases
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.pulling import GridJobPulling
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.transport import Away, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway between the service and a job manager; after `StateUnusable` the rest has to wait."""

    manager: Manager
    permits: Permits
    leases: GatewayLeases
    advertising: GatewayAdvertising
    pulling: GridJobPulling
    presence: Presence

    def talk(self, now: datetime) -> GatewaySummary:
        """Run one cycle with the service: heartbeats, advertisements, new grid jobs."""
        summary = GatewaySummary(at=now)
        try:
            self._talk(summary)
        except Away as error:
            summary.away.append(str(error))
        self._count(summary)
        if not summary.away:
            with suppress(Away):  # the next cycle notes it
                self._report(summary)
        return summary

    def run_once(self, now: datetime) -> GatewaySummary:
        """Run one cycle of all parts, one after the other."""
        self.manager.measure_loads()  # there is no cycle before that could have
        summary = self.talk(now)
        self.manager.advance()
        self._count(summary)
        try:
            self.leases.deliver()
        except Away as error:
            summary.away.append(str(error))
        return summary

    def _count(self, summary: GatewaySummary) -> None:
        """Count the grid jobs as they are now, and note their problems."""
        grid_jobs = self.manager.grid_jobs()
        summary.grid_jobs = Counter(self.leases.phase_of(each).value for each in grid_jobs)
        summary.local_jobs = Counter()
        summary.stuck = sum(bool(each.problem) for each in grid_jobs)
        for each in grid_jobs:
            summary.local_jobs.update({state.value: number for state, number in each.local.items()})
            if each.problem:
                summary.note_problem(each.taken.vo, f"job {each.taken.job_id}: {each.problem}")

    def _report(self, summary: GatewaySummary) -> None:
        """Report that this gateway works. A refusal stops nothing: its journal is locked by this process."""
        for vo in self.pulling.vos:
            with suppress(Refused):
                self.advertising.service.report_process(
                    self.presence.build_report(vo, problems=summary.list_problems(vo))
                )

    def _talk(self, summary: GatewaySummary) -> None:
        grid_jobs = self.manager.grid_jobs()
        self.permits.observe(grid_jobs)
        self.leases.keep(grid_jobs, summary)
        try:
            self.advertising.service.renew_if_due()
        except Refused as error:  # it still serves until it expires
            summary.problems.append(f"the token is not renewed: {error}")
        sites = {each.queue.partition("/")[0] for each in self.pulling.queues}
        self.advertising.advertise(sites, summary)
        taken = self.pulling.pull(grid_jobs, summary)
        self.leases.begin(taken, summary)
