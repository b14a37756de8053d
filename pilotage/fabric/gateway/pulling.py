"""Pulling grid jobs: one at a time, for each queue and VO as long as there is room.

One at a time, since the parameters of a queue say what one node offers, and jobs of one request would have
to share that.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.director import asking
from pilotage.fabric.director.outlets import Outlet
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.requests import Requests
from pilotage.fabric.gateway.summary import Summary
from pilotage.fabric.manager.grid_job import GridJob, Taken, job_type
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service import Match, Service
from pilotage.fabric.pilot.settings import Place, Wishes
from pilotage.fabric.pilot.transport import Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A queue that grid jobs come in by."""

    outlet: Outlet
    most: int  #: grid jobs at a time
    vos: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Pulling:
    """The gateway's hand."""

    service: Service
    manager: Manager
    permits: Permits
    requests: Requests
    gates: Sequence[Gate]
    job_types: tuple[str, ...]  #: with a handler
    _turn: int = 0  #: rounds so far: who was first is last next time

    def __post_init__(self) -> None:
        for wanted, request_id in self.requests.names.items():
            self.permits.expect_again(request_id, wanted.partition(" ")[2])

    def pull(self, grid_jobs: Sequence[GridJob], summary: Summary) -> list[Taken]:
        """Take what there is and fits.

        Raises:
            Away: The service does not answer.
            StateUnusable: Nothing can be recorded; what was asked for is asked for again.
        """
        here = Counter(each.taken.queue for each in grid_jobs)
        self._turn += 1
        found: list[Taken] = []
        for gate in self.gates:
            for vo in _turned(gate.vos, self._turn):
                try:
                    for taken in self._for(gate, vo, here, summary):
                        here[gate.outlet.queue] += 1
                        found.append(taken)
                except Refused as error:
                    summary.problems.append(f"{gate.outlet.queue} for {vo}: {error}")
        summary.taken += len(found)
        return found

    def _for(self, gate: Gate, vo: str, here: Mapping[str, int], summary: Summary) -> Iterator[Taken]:
        """Jobs of one VO for one queue, one after the other."""
        queue, wanted = gate.outlet.queue, f"{vo} {gate.outlet.queue}"
        offer: Mapping[str, object] | None = None
        while self._has_room(gate, wanted, here):
            request_id = self.requests.name(wanted)
            if not self.permits.expect(request_id, queue):
                summary.refused["permit"] += 1
                return
            offer = offer or self._offer(gate, vo)
            taken = self._ask(offer, wanted, request_id, queue, summary)
            if not taken:
                return
            yield from taken

    def _has_room(self, gate: Gate, wanted: str, here: Mapping[str, int]) -> bool:
        """Whether one more may come; one that may have come already is asked for in any case."""
        queue = gate.outlet.queue
        name = self.requests.names.get(wanted)
        if name is not None and self.permits.is_coming(name):
            return True
        return here[queue] + self.permits.coming(queue) < gate.most

    def _offer(self, gate: Gate, vo: str) -> Mapping[str, object]:
        site, ce, queue = gate.outlet.queue.split("/")
        parameters = self.service.queue_parameters(Place(site, ce, queue), vo)
        made = asking.offered(gate.outlet, Wishes(vo=vo, job_types=self.job_types), parameters)
        return asking.request(made, gate.outlet, parameters)

    def _ask(
        self, offer: Mapping[str, object], wanted: str, request_id: str, queue: str, summary: Summary
    ) -> list[Taken]:
        """Ask for one job and record it; the request stays open until that is done."""
        try:
            work = self.service.request_job(offer, count=1, request_id=request_id)
        except Refused:
            self.permits.came(request_id, [])
            raise
        taken = [self._typed(match, queue) for match in work.matches]
        for each in taken:
            self.manager.take(each)
            log.info("job %d (attempt %d) taken for %s", each.job_id, each.epoch, queue)
        if taken:
            self.requests.done(wanted)
        else:
            summary.refused[work.reason] += 1
        self.permits.came(request_id, taken)
        return taken

    def _typed(self, match: Match, queue: str) -> Taken:
        """As the manager takes it: its JobType in the handler's spelling."""
        stated = job_type(match.description)
        spelled = {each.lower(): each for each in self.job_types}.get(stated.lower(), stated)
        return Taken(
            job_id=match.job_id,
            epoch=match.epoch,
            lease=match.lease,
            description={**match.description, "JobType": spelled},
            queue=queue,
        )


def _turned(names: Sequence[str], by: int) -> Sequence[str]:
    start = by % len(names)
    return [*names[start:], *names[:start]]
