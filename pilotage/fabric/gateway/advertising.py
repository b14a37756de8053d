"""What a gateway advertises: its job types, its grid jobs by state, what is measured of its batch systems.

The watermark is fetched before counting: every job that the service had recorded as started by then is
counted, or has left. Jobs that it may not have recorded yet are listed. Source: SAM-Grid.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pilotage.fabric.batch.measurements import combine_measurements
from pilotage.fabric.cycle_summaries import GatewaySummary
from pilotage.fabric.gateway.configuration import scopes_of_queue
from pilotage.fabric.gateway.leases import GatewayLeases
from pilotage.fabric.gateway.permits import Permits, is_gathering
from pilotage.fabric.gateway.service import GatewayService
from pilotage.fabric.manager.grid_job import GridJob, LocalState, ManagerPhase
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.transport import Refused

#: HTTP status of a site that is not in the configuration: nothing limits it.
_UNKNOWN = 404
#: Policies that limit submitting and gathering jobs together.
_TOGETHER = frozenset({"level1", "level2"})
_LIMIT = "MaxSubmittingAndOutputGatheringJobs"
#: States of local jobs before they run.
_PENDING = frozenset({LocalState.UNSUBMITTED, LocalState.INTENDED, LocalState.WAITING})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAdvertising:
    """Reports how many grid jobs are here, and fetches how many may be submitted and gathered at once."""

    service: GatewayService
    manager: Manager
    permits: Permits
    leases: GatewayLeases
    scopes: Sequence[str]  #: sites, CEs and queues that only this gateway serves
    job_types: Sequence[str]  #: with a handler

    def advertise(self, sites: Iterable[str], summary: GatewaySummary) -> None:
        """Advertise every scope, and fetch the limits at our sites."""
        throttles: list[Mapping[str, Any]] = []
        grid_jobs = self.manager.grid_jobs()
        for site in sorted(sites):
            try:
                self._advertise_site(site, grid_jobs, summary)
                throttles += self.service.throttles(site)
            except Refused as error:
                summary.problems.append(f"{site} is not advertised: {error}")
                if error.status != _UNKNOWN:  # the previous limits stay valid
                    return
        self.permits.limit(_limits(throttles))

    def _advertise_site(self, site: str, grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> None:
        scopes = [scope for scope in self.scopes if scope.partition("/")[0] == site]
        if not scopes:
            return
        watermark = self.service.watermark(site)
        for scope in scopes:
            there = [
                replace(each, phase=self.leases.phase_of(each))
                for each in grid_jobs
                if scope in scopes_of_queue(each.taken.queue)
            ]
            attempts = [each.taken.key._asdict() for each in there]
            try:
                measured = self._read_measurements(scope)
                state = {**measured, **count_by_state(there), "JobTypes": list(self.job_types)}
                self.service.advertise(scope, {**state, "as_of": watermark, "attempts_seen": attempts})
            except Refused as error:
                summary.problems.append(f"{scope} is not advertised: {error}")
            else:
                summary.advertised += 1

    def _read_measurements(self, scope: str) -> Mapping[str, float]:
        """What is measured of the batch systems of the queues in a scope."""
        context = self.manager.context
        names = {each.system for queue, each in context.queues.items() if scope in scopes_of_queue(queue)}
        return combine_measurements([context.systems[name].measured.read() for name in sorted(names)])


def count_by_state(grid_jobs: Sequence[GridJob]) -> Mapping[str, int]:
    """Count grid jobs by state, with the names of the throttles."""
    by_phase = [each.phase for each in grid_jobs]
    return {
        "CurrentJobs": len(grid_jobs),
        "CurrentSubmittingJobs": by_phase.count(ManagerPhase.SUBMITTING),
        "CurrentPollingJobs": by_phase.count(ManagerPhase.POLLING),
        "CurrentUpdatingJobs": by_phase.count(ManagerPhase.UPDATING),
        "CurrentResubmittingJobs": by_phase.count(ManagerPhase.RESUBMITTING),
        "CurrentCancellingJobs": by_phase.count(ManagerPhase.CANCELLING),
        "CurrentGatheringOutputJobs": sum(is_gathering(each) for each in grid_jobs),
        "CurrentPendingJobs": sum(_is_pending(each) for each in grid_jobs),
    }


def _is_pending(grid_job: GridJob) -> bool:
    """Whether none of its local jobs has started to run."""
    waits = grid_job.phase in (ManagerPhase.SUBMITTING, ManagerPhase.POLLING, ManagerPhase.UPDATING)
    return waits and {state for state, number in grid_job.local.items() if number} <= _PENDING


def _limits(throttles: Iterable[Mapping[str, Any]]) -> Mapping[str, int]:
    """Maximum submitting and gathering jobs by scope, where limited."""
    return {
        str(each["scope"]): int(each["limits"][_LIMIT])
        for each in throttles
        if each["policy"] in _TOGETHER and _LIMIT in each["limits"]
    }
