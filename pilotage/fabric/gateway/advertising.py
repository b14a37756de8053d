"""Saying how many grid jobs are here, and in which of the five states of their manager.

The watermark is fetched, then is counted, then advertised: what the service had recorded as begun by then
is in the counts, or has left. Those that it may not have recorded yet are listed. Source: SAM-Grid.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.gateway.configuration import scopes_of_queue
from pilotage.fabric.gateway.cycle_summary import GatewaySummary
from pilotage.fabric.gateway.permits import Permits, is_gathering
from pilotage.fabric.gateway.service import GatewayService, ThrottleLimits
from pilotage.fabric.manager.grid_job import GridJob, LocalState, ManagerPhase
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.transport import Refused

#: What HTTP says of a site that the configuration does not have: nothing limits it.
_UNKNOWN = 404
#: Under which jobs that submit and jobs that gather are limited together.
_TOGETHER = frozenset({"level1", "level2"})
_LIMIT = "MaxSubmittingAndOutputGatheringJobs"
#: Grid jobs of which no local job has begun to run.
_PENDING = frozenset({LocalState.UNSUBMITTED, LocalState.INTENDED, LocalState.WAITING})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAdvertising:
    """The gateway's voice."""

    service: GatewayService
    manager: Manager
    permits: Permits
    scopes: Sequence[str]  #: sites, CEs and queues whose jobs are all here

    def advertise(self, sites: Iterable[str], summary: GatewaySummary) -> None:
        """Tell of every scope, and hear what limits hold at our sites.

        Raises:
            Away: The service does not answer.
            StateUnusable: Nobody can count.
        """
        throttles: list[ThrottleLimits] = []
        for site in sorted(sites):
            try:
                self._of_site(site, summary)
                throttles += self.service.throttles(site)
            except Refused as error:
                summary.problems.append(f"{site} is not advertised: {error}")
                if error.status != _UNKNOWN:  # what held there holds on
                    return
        self.permits.limit(_limits(throttles))

    def _of_site(self, site: str, summary: GatewaySummary) -> None:
        scopes = [scope for scope in self.scopes if scope.partition("/")[0] == site]
        if not scopes:
            return
        watermark = self.service.watermark(site)
        grid_jobs = self.manager.grid_jobs()
        for scope in scopes:
            there = [each for each in grid_jobs if scope in scopes_of_queue(each.taken.queue)]
            try:
                self.service.advertise(
                    scope, {**count_by_state(there), "as_of": watermark, **_seen_attempts(there)}
                )
            except Refused as error:
                summary.problems.append(f"{scope} is not advertised: {error}")
            else:
                summary.advertised += 1


def count_by_state(grid_jobs: Sequence[GridJob]) -> Mapping[str, int]:
    """How many there are by state, as throttles name them."""
    by_phase = [each.phase for each in grid_jobs]
    return {
        "CurrentJobs": len(grid_jobs),
        "CurrentSubmittingJobs": by_phase.count(ManagerPhase.SUBMITTING),
        "CurrentPollingJobs": by_phase.count(ManagerPhase.POLLING),
        "CurrentUpdatingJobs": by_phase.count(ManagerPhase.UPDATING),
        "CurrentCancellingJobs": by_phase.count(ManagerPhase.CANCELLING),
        "CurrentGatheringOutputJobs": sum(is_gathering(each) for each in grid_jobs),
        "CurrentPendingJobs": sum(_is_pending(each) for each in grid_jobs),
    }


def _is_pending(grid_job: GridJob) -> bool:
    """Whether none of its local jobs has come to run."""
    waits = grid_job.phase in (ManagerPhase.SUBMITTING, ManagerPhase.POLLING)
    return waits and {state for state, number in grid_job.local.items() if number} <= _PENDING


def _seen_attempts(grid_jobs: Iterable[GridJob]) -> Mapping[str, object]:
    seen = [{"job_id": each.taken.job_id, "epoch": each.taken.epoch} for each in grid_jobs]
    return {"attempts_seen": seen}


def _limits(throttles: Iterable[ThrottleLimits]) -> Mapping[str, int]:
    """How many jobs may be submitting or gathering, where that is limited."""
    return {
        each.scope: int(each.limits[_LIMIT])
        for each in throttles
        if each.policy in _TOGETHER and _LIMIT in each.limits
    }
