"""Task queues that resources may serve at this moment; for directors.

Of one resource with the first jobs of each task queue; of many resources with the numbers of jobs only.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Final

from sqlalchemy import Connection

from cs_config.cache import RowCounts
from cs_config.errors import QueueNotFound
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.claim.matcher import Matcher
from matcher.claim.snapshot import Snapshot
from matcher.class_flags import ClassFlags, Flags
from matcher.explain.eligible_queues import DemandRanks
from matcher.index import type_order
from matcher.limits.place_policy import PlacePolicy
from matcher.request.match_request import MatchCaller, NotServed
from matcher.seen_nodes import SeenNodes
from requirements.resource import Location, StatedResource
from taskqueue.leases import candidate_jobs
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueue

#: Task queues in a listing.
MOST: Final = 1000
#: Task queues in a listing where each job is checked by itself: several statements for each.
_MOST_CHECKED = 100
#: Job ids per task queue in a listing.
_NAMED_JOBS = 100
#: Jobs of a task queue that are checked one by one for admission.
_ASKED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingTaskQueue:
    """A task queue that a resource may serve now."""

    task_queue: TaskQueue
    waiting: int  #: jobs that limits, delays and bans do not exclude
    job_ids: tuple[int, ...]  #: the first to be handed out, at most 100
    tier: int | None = None  #: of its job type, from 1; None: the VO does not order its types


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedPlace:
    """A place with the task queues that its resource may serve."""

    candidates: Collection[TaskQueue]
    place: Location
    gate: PlacePolicy | None  #: None: no conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotDemand:
    """Waiting jobs that some of many resources may serve, each task queue once."""

    task_queues: Mapping[int, TaskQueue]  #: by id
    waiting: Mapping[int, int]  #: jobs by id; where places differ, the largest number
    served: list[list[int]]  #: ids for each resource, in the order of the request
    #: For each resource the rank of each of `served`, by the job's `Rank`, else the queue's; empty: none.
    ranks: list[list[float | None]]
    #: For each resource what its batch system is asked for each of `served`; empty: nothing for any of them.
    flags: list[list[Flags]]


#: Candidates for all resources of one request: well below a second of processor time.
_MOST_CANDIDATES = 200_000


@dataclass(slots=True)
class DemandCount:
    """Collects the demand for many resources in one transaction."""

    _task_queues: dict[int, TaskQueue] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)  #: where a gate counted
    _served: list[list[int]] = field(default_factory=list)
    _places: list[Location | None] = field(default_factory=list)
    _candidates: int = 0  #: of all resources

    @property
    def is_full(self) -> bool:
        """Whether the answer for these resources is as long as one request may make it."""
        return self._candidates >= _MOST_CANDIDATES

    def add(self, conn: Connection, found: MatchedPlace | None) -> None:
        """Add the next resource; None: it serves nothing."""
        numbers = {} if found is None else _count_admitted(conn, found)
        if found is not None:
            self._candidates += len(found.candidates)
            self._task_queues |= {
                each.task_queue_id: each for each in found.candidates if each.task_queue_id in numbers
            }
        for task_queue_id, waiting in numbers.items():
            if waiting is not None:
                self._waiting[task_queue_id] = max(waiting, self._waiting.get(task_queue_id, 0))
        self._served.append(sorted(numbers))
        self._places.append(None if found is None else found.place)

    def total(self, conn: Connection, config: Configuration, now: datetime, counts: RowCounts) -> PilotDemand:
        """The demand for all resources; one statement counts the jobs of all places without conditions."""
        everywhere = counts.get(
            self._task_queues.keys(), lambda ids: task_queues.count_waiting(conn, ids), now=now
        )
        waiting = {
            each: min(everywhere[each], self._waiting.get(each, everywhere[each]))
            for each in self._task_queues
            if each in everywhere
        }
        served = [[each for each in of_resource if each in waiting] for of_resource in self._served]
        ranks, flags = DemandRanks(conn, config, waiting, now), ClassFlags(config)
        by_queue = [
            (_read_address(place), of_resource)
            for place, of_resource in zip(self._places, served, strict=True)
        ]
        return PilotDemand(
            task_queues={each: self._task_queues[each] for each in waiting},
            waiting=waiting,
            served=served,
            ranks=[self._rank(ranks, *each) for each in by_queue],
            flags=[self._list_flags(flags, *each) for each in by_queue],
        )

    def _list_flags(
        self, flags: ClassFlags, address: QueueAddress | None, task_queues: Sequence[int]
    ) -> list[Flags]:
        if address is None:
            return []
        found = [flags.find(address, self._task_queues[each].requirement_class) for each in task_queues]
        return found if any(found) else []

    def _rank(
        self, ranks: DemandRanks, address: QueueAddress | None, task_queues: Sequence[int]
    ) -> list[float | None]:
        if address is None:
            return []
        by_vo = defaultdict[str, list[int]](list)
        for each in task_queues:
            by_vo[self._task_queues[each].vo].append(each)
        found = {
            each: rank
            for vo, of_vo in by_vo.items()
            for each, rank in zip(of_vo, ranks.rank(address, vo, of_vo), strict=True)
        }
        return [] if all(rank is None for rank in found.values()) else [found[each] for each in task_queues]


def _read_address(place: Location | None) -> QueueAddress | None:
    """The queue of a place; None: it has none."""
    if place is None or not place.queue:
        return None
    return QueueAddress(site=place.site, ce=place.ce, queue=place.queue)


def _count_admitted(conn: Connection, found: MatchedPlace) -> Mapping[int, int | None]:
    """Jobs of each task queue that a claim would take; None: all, and they are not counted yet."""
    gate = found.gate
    if gate is None:
        return dict.fromkeys(each.task_queue_id for each in found.candidates)
    if not gate.most(1):
        return {}
    if not gate.depends_on_job:
        return dict.fromkeys(each.task_queue_id for each in found.candidates)
    some = gate.list_passing(conn, sorted(found.candidates, key=_task_queue_id), found.place)
    return {
        each.task_queue_id: candidate_jobs.count_candidates(
            conn, each.task_queue_id, place=found.place, passing=gate.passing(each)
        )
        for each in some
        if next(gate.admitted(conn, each, found.place, most=_ASKED), None) is not None
    }


def _task_queue_id(task_queue: TaskQueue) -> int:
    return task_queue.task_queue_id


def _list_matching(
    conn: Connection,
    config: Configuration,
    candidates: Collection[TaskQueue],
    place: Location,
    gate: PlacePolicy | None,
) -> list[MatchingTaskQueue]:
    """The candidates with a job that a claim at the place would take now; `gate` None: no conditions.

    Of more than `MOST` candidates those of the earliest tiers, and of these those with the largest weights.
    """
    first = heapq.nsmallest(
        MOST, candidates, key=lambda each: (type_order.find_tier(config, each) or 0, -each.priority)
    )
    by_id = {each.task_queue_id: each for each in first}
    if gate is None or not gate.depends_on_job:
        return [] if gate is not None and not gate.most(1) else list(_list_all(conn, by_id))
    if not gate.most(1):
        return []
    concerned = gate.list_passing(conn, [each for _, each in sorted(by_id.items())], place)
    shown = (_list_admitted(conn, each, place, gate) for each in concerned[:_MOST_CHECKED])
    return [each for each in shown if each.job_ids]


def _list_all(conn: Connection, by_id: Mapping[int, TaskQueue]) -> Iterator[MatchingTaskQueue]:
    waiting = task_queues.count_waiting(conn, by_id)
    for task_queue_id, job_ids in sorted(task_queues.list_first_jobs(conn, waiting, _NAMED_JOBS).items()):
        yield MatchingTaskQueue(
            task_queue=by_id[task_queue_id], waiting=waiting[task_queue_id], job_ids=tuple(job_ids)
        )


def _list_admitted(
    conn: Connection, task_queue: TaskQueue, place: Location, gate: PlacePolicy
) -> MatchingTaskQueue:
    admitted = islice(gate.admitted(conn, task_queue, place, most=_ASKED), _NAMED_JOBS)
    job_ids = tuple(job.job_id for job in admitted)
    passing = gate.passing(task_queue)
    return MatchingTaskQueue(
        task_queue=task_queue,
        waiting=candidate_jobs.count_candidates(conn, task_queue.task_queue_id, place=place, passing=passing),
        job_ids=job_ids,
    )


def _find_served(
    view: Snapshot, presented: StatedResource, caller: MatchCaller, seen: SeenNodes
) -> MatchedPlace | None:
    """The task queues that a resource may serve; None: the queue serves none of the VOs now.

    Without those whose jobs need of a node what none of the last pilots of the queue had.
    """
    served, resource = view.place_now(presented, caller)
    if served is None:
        return None
    pools, place = served.pools, served.place
    if not presented.node_facts:
        # Without a node, no pool can be excluded by its facts.
        pools, place = pools | served.kept_back, replace(place, checked=view.config.version)
    fitting: Sequence[TaskQueue] = view.candidates(pools, resource)
    if seen and (address := _read_address(place)) is not None:
        fitting = [each for each in fitting if seen.may_run(address, resource, each.requirement_class)]
    candidates, admission = view.admitted(place, resource, fitting)
    # As pilots ask, which fill their slots.
    gate = view.gate(place, admission, resource=resource, count=resource.processors or 1)
    return MatchedPlace(candidates=candidates, place=place, gate=gate)


def get_matching_task_queues(
    matcher: Matcher, presented: StatedResource, caller: MatchCaller
) -> list[MatchingTaskQueue]:
    """Task queues that a resource may serve now, limits and bans applied, with their waiting jobs.

    Without node facts, including those that only some nodes of the queue may serve. At most `MOST`, those
    of the earliest tiers of job types with the largest weights.
    """
    with matcher.current_view() as view:
        seen = SeenNodes(view.conn, view.config, {presented.site}, view.now)
        found = _find_served(view, presented, caller, seen)
        if found is None:
            return []
        listed = _list_matching(view.conn, view.config, found.candidates, found.place, found.gate)
        return [replace(each, tier=type_order.find_tier(view.config, each.task_queue)) for each in listed]


def count_demand(
    matcher: Matcher, resources: Sequence[StatedResource], caller: MatchCaller, counts: RowCounts
) -> PilotDemand:
    """The same for many resources, as numbers of jobs; a resource that is not served has none.

    Where very many task queues wait, only for the first of the resources. `counts` are those of this process:
    many directors ask for the same task queues, and to count a million jobs takes a third of a second.
    """
    count = DemandCount()
    with matcher.current_view() as view:
        seen = SeenNodes(view.conn, view.config, {each.site for each in resources}, view.now)
        for each in resources:
            try:
                found = _find_served(view, each, caller, seen)
            except (NotServed, QueueNotFound):  # the configuration has changed meanwhile
                found = None
            count.add(view.conn, found)
            if count.is_full:
                break
        return count.total(view.conn, view.config, view.now, counts)
