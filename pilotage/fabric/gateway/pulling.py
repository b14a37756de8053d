"""Pulling of grid jobs for the queues of a gateway.

Grid jobs are pulled one per request, for each queue and VO as long as there is room: one per request, since
the parameters of a queue describe one node, and jobs of one request would have to share it. Request ids are
in the journal before the request and removed once its jobs are recorded: a gateway that was killed repeats
the request under the same id and gets the same jobs, so no job is lost with a response.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.cycle_summaries import GatewaySummary
from pilotage.fabric.director import matcher_client
from pilotage.fabric.gateway import leases
from pilotage.fabric.gateway.configuration import GatewayQueue
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.manager.grid_job import GridJob, PulledGridJob, job_type
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.heartbeat import elapsed_time
from pilotage.fabric.pilot.service.service_client import Match, Service
from pilotage.fabric.pilot.service.transport import Refused
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace
from requirements.nodes.lrms_vocabulary import Vocabulary, are_flags

log = logging.getLogger(__name__)

#: End of the names of requests for jobs with flags; others are `<VO> <Site/CE/Queue>`.
_FLAGS = " flags"
#: Seconds of wall time that a local job gets at least.
_SHORTEST = 60


@dataclass(slots=True, kw_only=True)
class GridJobPulling:
    """Pulls grid jobs for all queues."""

    service: Service
    manager: Manager
    permits: Permits
    queues: Sequence[GatewayQueue]
    vos: Sequence[str]
    job_types: tuple[str, ...]  #: with a handler
    #: By batch system, the vocabularies of the flags that it takes; without any, jobs with flags do not come.
    languages: Mapping[str, Sequence[Vocabulary]] = field(default_factory=dict)
    _turn: int = 0  #: number of the VO that comes first in this round
    #: Open requests that this process had an empty answer to.
    _answered: set[str] = field(default_factory=set)
    #: VOs and queues for which flags were refused: until a restart only jobs without flags are requested.
    _without_flags: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for wanted, request_id in self.manager.journal.requests.items():
            self.permits.expect_again(request_id, wanted.removesuffix(_FLAGS).partition(" ")[2])

    def pull(self, grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> list[PulledGridJob]:
        """Pull as many grid jobs as there are and fit; what is interrupted is repeated later."""
        here = Counter(each.taken.queue for each in grid_jobs)
        self._turn = (self._turn + 1) % len(self.vos)
        found: list[PulledGridJob] = []
        for queue in self.queues:
            for vo in (*self.vos[self._turn :], *self.vos[: self._turn]):
                try:
                    for taken in self._pull_for(queue, vo, here, summary):
                        here[queue.queue] += 1
                        found.append(taken)
                except Refused as error:
                    summary.note_problem(vo, f"{queue.queue} for {vo}: {error}")
        summary.taken += len(found)
        return found

    def _pull_for(
        self, gate: GatewayQueue, vo: str, here: Mapping[str, int], summary: GatewaySummary
    ) -> Iterator[PulledGridJob]:
        """Pull jobs of one VO for one queue, one after the other."""
        offer: _QueueOffer | None = None
        while self._has_room(gate, vo, wanted := self._next_request(gate, vo), here):
            request_id = self.manager.journal.open_request(wanted)
            if not self.permits.expect(request_id, gate.queue):
                summary.refused["permit"] += 1
                return
            if offer is None or offer.wanted != wanted:
                offer = self._offer(gate, vo, wanted)
            taken = self._ask(offer, request_id, summary)
            yield from taken
            if not taken and self._next_request(gate, vo) == wanted:
                return

    def _next_request(self, gate: GatewayQueue, vo: str) -> str:
        """Name of the next request in the journal: one without an answer is repeated first, as it was.

        Repeated the other way it would be a different request, and its job would lose its flags.
        """
        plain = f"{vo} {gate.queue}"
        flagged = f"{plain}{_FLAGS}"
        open_requests = self.manager.journal.requests.keys() - self._answered
        if flagged in open_requests or plain in open_requests:
            return flagged if flagged in open_requests else plain
        takes_flags = self.languages.get(gate.system) and plain not in self._without_flags
        return flagged if takes_flags else plain

    def _has_room(self, gate: GatewayQueue, vo: str, wanted: str, here: Mapping[str, int]) -> bool:
        """Whether one more may come; an open request is repeated in any case."""
        name = self.manager.journal.requests.get(wanted)
        if name is not None and self.permits.is_coming(name):
            return True
        if self.manager.is_refusing(gate.queue, vo):
            return False
        return here[gate.queue] + self.permits.coming(gate.queue) < gate.max_grid_jobs

    def _offer(self, gate: GatewayQueue, vo: str, wanted: str) -> "_QueueOffer":
        target = gate.to_target()
        site, ce, queue = target.queue.split("/")
        parameters = self.service.queue_parameters(QueuePlace(site, ce, queue), vo)
        made = matcher_client.expected_offer(target, JobFilters(vo=vo, job_types=self.job_types), parameters)
        request = dict(matcher_client.build_request(made, target, parameters))
        if wanted.endswith(_FLAGS):
            request["SubmitFlags"] = True
        return _QueueOffer(gate=gate, vo=vo, wanted=wanted, request=request, cpu_power=made.cpu_power)

    def _ask(self, offer: "_QueueOffer", request_id: str, summary: GatewaySummary) -> list[PulledGridJob]:
        """Request one job and record it; the request stays open until that is done."""
        self._answered.discard(offer.wanted)
        sent = elapsed_time()
        try:
            work = self.service.request_job(offer.request, count=1, request_id=request_id)
        except Refused:
            self.permits.came(request_id, [])
            raise
        taken = []
        system = offer.gate.system
        for match in work.matches:
            if not match.flags or are_flags(match.flags, self.languages.get(system, ())):
                taken.append(each := self._typed(match, offer))
                # Without an answer to its start the service gives it to others at the end of its lease.
                self.manager.journal.take(each, leases.build_answer(sent=sent, run_on=match.lease_seconds))
                log.info("job %d (attempt %d) taken for %s", each.job_id, each.epoch, each.queue)
                continue
            self.service.release(match.lease, "its flags are refused by the gateway", undelivered=True)
            summary.note_problem(
                offer.vo,
                f"job {match.job_id}: flags {' '.join(match.flags)!r:.200} of the service are refused: "
                f"{system} has no such conditions on nodes. Until a restart no jobs with flags are requested "
                f"for {offer.gate.queue}: correct Forwarding/Vocabulary of this queue in the configuration",
            )
        if work.matches:
            self.manager.journal.close_request(offer.wanted)
            if len(taken) < len(work.matches):
                self._without_flags.add(offer.wanted.removesuffix(_FLAGS))
        else:
            self._answered.add(offer.wanted)
            summary.refused[work.reason] += 1
        self.permits.came(request_id, taken)
        return taken

    def _typed(self, match: Match, offer: "_QueueOffer") -> PulledGridJob:
        """Convert a match for the manager, with its JobType in the handler's spelling."""
        stated = job_type(match.description)
        spelled = {each.lower(): each for each in self.job_types}.get(stated.lower(), stated)
        return PulledGridJob(
            job_id=match.job_id,
            epoch=match.epoch,
            lease=match.lease,
            description={**match.description, "JobType": spelled},
            queue=offer.gate.queue,
            flags=match.flags,
            resources=offer.resources_of(match),
            vo=offer.vo,
            owner=match.owner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueueOffer:
    """Offer of a queue to grid jobs: each of their local jobs gets at most that."""

    gate: GatewayQueue
    vo: str
    wanted: str  #: name of its requests in the journal
    request: Mapping[str, object]
    cpu_power: float  #: normalised seconds of CPU per second

    def resources_of(self, match: Match) -> JobResources:
        """Resources of each local job: those that its grid job needs among those that the queue states."""
        stated = self.gate.to_target().resources
        is_whole = stated.whole_node or match.description.get("WholeNode") is True
        return replace(
            stated,
            cores=min(match.processors or stated.cores, stated.cores),
            memory=match.ram_mb or stated.memory,
            wall_time=self._wall_time(match.description.get("CPUTime"), stated.wall_time),
            gpus=stated.gpus if match.gpus is None else match.gpus,
            whole_node=is_whole,
        )

    def _wall_time(self, cpu_time: object, longest: int | None) -> int | None:
        """Seconds for a job's CPU time, which is normalised; the queue's, unless the site has a rate."""
        rate = self.gate.wall_time_per_cpu
        if rate is None or not isinstance(cpu_time, int | float) or cpu_time <= 0:
            return longest
        needed = max(_SHORTEST, math.ceil(cpu_time / self.cpu_power * rate))
        return needed if longest is None else min(needed, longest)
