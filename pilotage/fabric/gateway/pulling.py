"""Pulling of grid jobs: one per request, for each queue and VO as long as there is room.

One per request, since the parameters of a queue describe one node, and jobs of one request would have to
share it. Request ids are stored on disk before the request and removed once its jobs are recorded: a gateway
that was killed repeats the request under the same id and gets the same jobs, so no job is lost with a
response.
"""

import json
import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.cycle_summaries import GatewaySummary
from pilotage.fabric.director import matcher_client
from pilotage.fabric.gateway.configuration import GatewayQueue
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.manager.grid_job import GridJob, PulledGridJob, job_type
from pilotage.fabric.manager.journal import StateUnusable
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service.service_client import Match, Service
from pilotage.fabric.pilot.service.transport import Refused
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace


@dataclass(slots=True)
class RequestNames:
    """The file of request ids of one gateway process; `StateUnusable` if it cannot be read or written."""

    file: Path
    _names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._names = self._read()

    @property
    def names(self) -> Mapping[str, str]:
        """Ids of open requests, by VO and queue; those of an earlier process may have been answered."""
        return self._names

    def name(self, wanted: str) -> str:
        """The id of the request for `wanted`, on disk when it returns."""
        if wanted not in self._names:
            self._write({**self._names, wanted: str(uuid.uuid4())})
        return self._names[wanted]

    def done(self, wanted: str) -> None:
        """Remove the id of a request whose jobs are recorded."""
        self._write({each: name for each, name in self._names.items() if each != wanted})

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StateUnusable(f"{self.file}: {error}") from error
        if not isinstance(content, dict):
            raise StateUnusable(f"{self.file}: holds {content!r:.60}, no names of requests")
        return {str(wanted): str(name) for wanted, name in content.items()}

    def _write(self, names: dict[str, str]) -> None:
        aside = self.file.with_suffix(".new")
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(names, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.file)
        except OSError as error:
            raise StateUnusable(f"{self.file}: {error.strerror}") from error
        self._names = names


log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GridJobPulling:
    """Pulls grid jobs for all queues."""

    service: Service
    manager: Manager
    permits: Permits
    requests: RequestNames
    queues: Sequence[GatewayQueue]
    vos: Sequence[str]
    job_types: tuple[str, ...]  #: with a handler
    _turn: int = 0  #: rounds so far: rotates the order of VOs

    def __post_init__(self) -> None:
        for wanted, request_id in self.requests.names.items():
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
            request_id = self.requests.name(wanted)
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
        name = self.requests.names.get(wanted)
        if name is not None and self.permits.is_coming(name):
            return True
        return here[gate.queue] + self.permits.coming(gate.queue) < gate.max_grid_jobs

    def _offer(self, gate: GatewayQueue, vo: str) -> Mapping[str, object]:
        target = gate.outlet()
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
            self.manager.take(each)
            log.info("job %d (attempt %d) taken for %s", each.job_id, each.epoch, queue)
        if taken:
            self.requests.done(wanted)
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
