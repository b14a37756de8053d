"""Pulling of grid jobs: one per request, for each queue and VO as long as there is room.

One per request, since the parameters of a queue describe one node, and jobs of one request would have to
share it. Request ids are in the journal before the request and removed once its jobs are recorded: a gateway
that was killed repeats the request under the same id and gets the same jobs, so no job is lost with a
response.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.cycle_summaries import GatewaySummary
from pilotage.fabric.director import matcher_client
from pilotage.fabric.gateway.configuration import GatewayQueue
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.manager.grid_job import GridJob, PulledGridJob, job_type
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.service_client import Match, Service
from pilotage.fabric.pilot.service.transport import Refused
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GridJobPulling:
    """Pulls grid jobs for all queues."""

    service: Service
    manager: Manager
    permits: Permits
    queues: Sequence[GatewayQueue]
    vos: Sequence[str]
    job_types: tuple[str, ...]  #: with a handler
    _turn: int = 0  #: rounds so far: rotates the order of VOs

    def __post_init__(self) -> None:
        for wanted, request_id in self.manager.journal.requests.items():
            self.permits.expect_again(request_id, wanted.partition(" ")[2])

    def pull(self, grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> list[PulledGridJob]:
        """Pull as many grid jobs as there are and fit; what is interrupted is repeated later."""
        here = Counter(each.taken.queue for each in grid_jobs)
        self._turn += 1
        found: list[PulledGridJob] = []
        for queue in self.queues:
            for vo in _turned(self.vos, self._turn):
                try:
                    for taken in self._pull_for(queue, vo, here, summary):
                        here[queue.queue] += 1
                        found.append(taken)
                except Refused as error:
                    summary.problems.append(f"{queue.queue} for {vo}: {error}")
        summary.taken += len(found)
        return found

    def _pull_for(
        self, gate: GatewayQueue, vo: str, here: Mapping[str, int], summary: GatewaySummary
    ) -> Iterator[PulledGridJob]:
        """Pull jobs of one VO for one queue, one after the other."""
        queue, wanted = gate.queue, f"{vo} {gate.queue}"
        offer: Mapping[str, object] | None = None
        while self._has_room(gate, wanted, here):
            request_id = self.manager.journal.open_request(wanted)
            if not self.permits.expect(request_id, queue):
                summary.refused["permit"] += 1
                return
            offer = offer or self._offer(gate, vo)
            taken = self._ask(offer, wanted, request_id, queue, summary)
            if not taken:
                return
            yield from taken

    def _has_room(self, gate: GatewayQueue, wanted: str, here: Mapping[str, int]) -> bool:
        """Whether one more may come; an open request is repeated in any case."""
        name = self.manager.journal.requests.get(wanted)
        if name is not None and self.permits.is_coming(name):
            return True
        return here[gate.queue] + self.permits.coming(gate.queue) < gate.max_grid_jobs

    def _offer(self, gate: GatewayQueue, vo: str) -> Mapping[str, object]:
        target = gate.to_target()
        site, ce, queue = target.queue.split("/")
        parameters = self.service.queue_parameters(QueuePlace(site, ce, queue), vo)
        made = matcher_client.expected_offer(target, JobFilters(vo=vo, job_types=self.job_types), parameters)
        return matcher_client.build_request(made, target, parameters)

    def _ask(
        self, offer: Mapping[str, object], wanted: str, request_id: str, queue: str, summary: GatewaySummary
    ) -> list[PulledGridJob]:
        """Request one job and record it; the request stays open until that is done."""
        try:
            work = self.service.request_job(offer, count=1, request_id=request_id)
        except Refused:
            self.permits.came(request_id, [])
            raise
        taken = [self._typed(match, queue) for match in work.matches]
        for each in taken:
            self.manager.journal.take(each)
            log.info("job %d (attempt %d) taken for %s", each.job_id, each.epoch, queue)
        if taken:
            self.manager.journal.close_request(wanted)
        else:
            summary.refused[work.reason] += 1
        self.permits.came(request_id, taken)
        return taken

    def _typed(self, match: Match, queue: str) -> PulledGridJob:
        """Convert a match for the manager, with its JobType in the handler's spelling."""
        stated = job_type(match.description)
        spelled = {each.lower(): each for each in self.job_types}.get(stated.lower(), stated)
        return PulledGridJob(
            job_id=match.job_id,
            epoch=match.epoch,
            lease=match.lease,
            description={**match.description, "JobType": spelled},
            queue=queue,
        )


def _turned(names: Sequence[str], by: int) -> Sequence[str]:
    start = by % len(names)
    return [*names[start:], *names[:start]]
