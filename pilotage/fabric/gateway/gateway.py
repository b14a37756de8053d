"""A gateway: cycles with the service, of delivering output, and of its job manager's work.

The three run in threads of their own, so that none waits for another: a batch system that hangs or a long
upload must not delay heartbeats. All state that has to outlive the process is in the manager's journal.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from pilotage.fabric.cycle_summaries import GatewaySummary
from pilotage.fabric.gateway.advertising import GatewayAdvertising
from pilotage.fabric.gateway.leases import GatewayLeases
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.pulling import GridJobPulling
from pilotage.fabric.manager.grid_job import GridJob
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.transport import Away, Refused
from pilotage.fabric.presence import Presence


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
            self._report(summary)
        except Away as error:
            summary.away.append(str(error))
        grid_jobs = self.manager.grid_jobs()
        _count([replace(each, phase=self.leases.phase_of(each)) for each in grid_jobs], summary)
        return summary

    def _report(self, summary: GatewaySummary) -> None:
        """Report that this gateway works. A refusal stops nothing: its journal is locked by this process."""
        for vo in self.pulling.vos:
            with suppress(Refused):
                self.advertising.service.report_process(
                    self.presence.build_report(vo, problems=summary.problems)
                )

    def _talk(self, summary: GatewaySummary) -> None:
        grid_jobs = self.manager.grid_jobs()
        self.permits.observe(grid_jobs)
        self.leases.keep(grid_jobs, summary)
        sites = {each.queue.partition("/")[0] for each in self.pulling.queues}
        self.advertising.advertise(sites, summary)
        taken = self.pulling.pull(grid_jobs, summary)
        self.leases.begin(taken, summary)


def _count(grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> None:
    summary.grid_jobs = Counter(each.phase.value for each in grid_jobs)
    for each in grid_jobs:
        summary.local_jobs.update({state.value: number for state, number in each.local.items()})
    summary.problems += [f"job {each.taken.job_id}: {each.problem}" for each in grid_jobs if each.problem]
