"""A gateway: its talk with the service, the deliveries, and the work of its job manager, round by round.

The three go on in threads of their own, so that none waits for another: a batch system that hangs keeps
nobody from telling the service that the jobs live, nor does an output that takes long. All that has to
outlive the process stands in the manager's book and in the names of requests.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pilotage.fabric.gateway.advertising import GatewayAdvertising
from pilotage.fabric.gateway.cycle_summary import GatewaySummary
from pilotage.fabric.gateway.delivery import OutputDelivery
from pilotage.fabric.gateway.leases import GatewayLeases
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.pulling import GridJobPulling
from pilotage.fabric.manager.grid_job import GridJob
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.transport import Away


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Between the service and a job manager."""

    manager: Manager
    permits: Permits
    leases: GatewayLeases
    advertising: GatewayAdvertising
    pulling: GridJobPulling
    delivering: OutputDelivery

    def talk(self, now: datetime) -> GatewaySummary:
        """One round with the service: news of what is here, the throttles, new work.

        Raises:
            StateUnusable: What is here cannot be read or recorded.
        """
        summary = GatewaySummary(at=now)
        try:
            self._talk(summary)
        except Away as error:
            summary.away.append(str(error))
        _count(self.manager.grid_jobs(), summary)
        return summary

    def work(self) -> None:
        """One round of the job manager.

        Raises:
            StateUnusable: The rest has to wait.
        """
        self.manager.advance()

    def deliver(self) -> int:
        """Outputs and outcomes of what has ended; the number of grid jobs that are told of.

        Raises:
            Away: The service does not answer; the rest has to wait.
            StateUnusable: It is not known what has ended.
        """
        return self.delivering.deliver()

    def _talk(self, summary: GatewaySummary) -> None:
        grid_jobs = self.manager.grid_jobs()
        self.permits.observe(grid_jobs)
        self.leases.keep(grid_jobs, summary)
        self.advertising.advertise(self._sites(), summary)
        taken = self.pulling.pull(grid_jobs, summary)
        self.leases.begin(taken, summary)

    def _sites(self) -> frozenset[str]:
        return frozenset(gate.outlet.queue.partition("/")[0] for gate in self.pulling.gates)


def _count(grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> None:
    summary.grid_jobs = Counter(each.phase.value for each in grid_jobs)
    for each in grid_jobs:
        summary.local_jobs.update({state.value: number for state, number in each.local.items()})
    summary.problems += [f"job {each.taken.job_id}: {each.problem}" for each in grid_jobs if each.problem]
