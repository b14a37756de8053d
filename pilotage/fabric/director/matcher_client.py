"""Demand for pilots from the matcher: waiting jobs of a VO that pilots of each queue could run.

The service computes it, since only its matcher implements the rules; one request has as many queues as fit.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pilotage.client.api import ServiceClient
from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.director import targets
from pilotage.fabric.director.demand import DemandedWork, QueueLimits
from pilotage.fabric.director.targets import Broker, DirectorTargets, QueueTarget, TargetGroup
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

#: Flags with the pools whose pilots are sent with them.
Groups = Mapping[tuple[str, ...], tuple[str, ...]]
#: The broker, empty for none, and the flags.
Way = tuple[str, tuple[str, ...]]
#: Resources and queues in one request; bytes of resources, and values in their JSON: less than the service
#: takes.
_MOST = 1000
_MOST_BYTES = 3_000_000
_MOST_VALUES = 600_000
#: Pilots at a queue where the tree states no limit.
_USUAL_LIMIT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueWork:
    """Waiting jobs of one task queue, and what each of them needs."""

    number: int
    submit_pool: str | None
    waiting: int
    processors: int = 1
    ram: int = 0  #: MB
    gpus: int = 0
    whole_node: bool = False

    def part_of(self, slot: JobResources) -> float:
        """The part of a slot that one job takes."""
        if self.whole_node:
            return 1.0
        rooms = [
            size // need
            for size, need in (
                (slot.cores, self.processors),
                (slot.memory, self.ram),
                (slot.gpus, self.gpus),
            )
            if size and need
        ]
        return 1 / max(1, min(rooms, default=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWork:
    """Waiting jobs for one queue."""

    target: QueueTarget  #: with the slot that its pilots get
    groups: Groups
    task_queues: tuple[TaskQueueWork, ...]
    ranks: Mapping[int, float] = field(default_factory=dict)  #: of the queue, by task queue
    flags: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  #: by task queue, beside its pool's
    beyond: tuple[TaskQueueWork, ...] = ()  #: that the queue allows, and the slot of the file does not

    def way(self, task_queue: TaskQueueWork) -> Way:
        """How pilots for a task queue are sent: with the flags of its pool, if it has one, and its own."""
        return self.target.broker, (*self._flags_of_pool(task_queue), *self._own_flags(task_queue))

    def _flags_of_pool(self, task_queue: TaskQueueWork) -> tuple[str, ...]:
        """The flags of its pool; jobs without one, and pools without flags, take any node."""
        return next((flags for flags, pools in self.groups.items() if task_queue.submit_pool in pools), ())

    def _own_flags(self, task_queue: TaskQueueWork) -> tuple[str, ...]:
        return self.flags.get(task_queue.number, ())

    def straight(self, vo: str) -> Mapping[TargetGroup, tuple[str, ...]]:
        """Groups of the queue with their pools; the one without flags is for jobs without pool, too.

        Pilots with flags of task queues serve the pools that those without them serve.
        """
        if self.target.broker:
            return {}
        served: Groups = {(): (), **self.groups}
        groups = dict(served)
        for each in self.task_queues:
            if own := self._own_flags(each):
                of_pool = self._flags_of_pool(each)
                flags = (*of_pool, *own)  # which may be those of another pool, too
                groups[flags] = tuple(dict.fromkeys((*groups.get(flags, ()), *served[of_pool])))
        return {
            TargetGroup(vo=vo, queues=(self.target.queue,), flags=flags): pools
            for flags, pools in groups.items()
        }


def collect_work(
    vo: str, found: Sequence[TargetWork], brokers: Mapping[str, Broker]
) -> Iterator[DemandedWork]:
    """The task queues, each once, with all groups whose pilots serve it."""
    behind = {
        name: tuple(sorted(each.target.queue for each in found if each.target.broker == name))
        for name, broker in brokers.items()
        if broker.entry is not None
    }
    work = {task_queue.number: task_queue for each in found for task_queue in each.task_queues}
    slots = {(each.target.broker, each.target.queue): each.target.resources for each in found}
    served = _queues_by_task_queue(found)
    own = {
        number: frozenset(group for way, queues in ways.items() for group in _groups(vo, way, queues, behind))
        for number, ways in served.items()
    }
    through_brokers = frozenset(group for groups in own.values() for group in groups if group.broker)
    for number, ways in sorted(served.items()):
        # Pilots for some of the queues that would do are as good as pilots for all of them.
        narrower = (
            group
            for group in through_brokers
            if ways.get((group.broker, group.flags), set()).issuperset(group.queues)
        )
        parts = {
            group: max(work[number].part_of(slots[group.broker, queue]) for queue in group.queues)
            for group in own[number].union(narrower)
        }
        ranks = {each.target.queue: each.ranks[number] for each in found if number in each.ranks}
        yield DemandedWork(jobs=work[number].waiting, groups=parts, ranks=ranks)


def _queues_by_task_queue(found: Iterable[TargetWork]) -> Mapping[int, Mapping[Way, set[str]]]:
    """The queues that may serve each task queue, by how pilots are sent there."""
    served: dict[int, dict[Way, set[str]]] = {}
    for each in found:
        for task_queue in each.task_queues:
            ways = served.setdefault(task_queue.number, {})
            ways.setdefault(each.way(task_queue), set()).add(each.target.queue)
    return served


def _groups(
    vo: str, way: Way, queues: Collection[str], behind: Mapping[str, tuple[str, ...]]
) -> Iterator[TargetGroup]:
    """Where pilots are sent that these queues serve; a broker with one entry sends them to any of its own."""
    broker, flags = way
    if broker:
        among = behind.get(broker) or tuple(sorted(queues))
        yield TargetGroup(vo=vo, queues=among, flags=flags, broker=broker)
        return
    for queue in sorted(queues):
        yield TargetGroup(vo=vo, queues=(queue,), flags=flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedWork:
    """Waiting jobs that a queue allows, and for which the slot that the file states is too small."""

    queue: str
    slot: str  #: what the file states, with what the queue has
    jobs: int
    task_queues: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoDemand:
    """Waiting jobs of a VO for all queues of a director."""

    vo: str
    work: tuple[DemandedWork, ...]
    pools: Mapping[
        TargetGroup, tuple[str, ...]
    ]  #: of every group that may get pilots; a broker's ask themselves
    limits: Mapping[str, QueueLimits]  #: by queue
    slots: Mapping[tuple[str, str], JobResources]  #: by broker, empty for none, and queue
    too_small: tuple[UnservedWork, ...] = ()
    problems: tuple[str, ...] = ()
    config_version: int = 0  #: of the configuration that the queues were read from; 0: no queue was read

    def slot_of(self, group: TargetGroup) -> JobResources:
        """The slot that a group's pilots get; of a broker the one with the shortest time among its queues."""
        found = [
            self.slots[group.broker, queue] for queue in group.queues if (group.broker, queue) in self.slots
        ]
        return min(found, key=lambda slot: slot.wall_time or float("inf"), default=JobResources())


def fetch_demand(
    client: ServiceClient, vo: str, sites: DirectorTargets, *, without: Collection[tuple[str, str, str]] = ()
) -> VoDemand:
    """Waiting jobs of a VO: pools by queue and flags, parameters, and the work for all targets, in bunches.

    `without` are VO, broker and queue that a broker is not to pick now.
    """
    chosen = sites.all_targets(vo, without=without)
    names = sorted({target.queue for target in chosen})
    described = _fetch_queues(client, vo, names)
    flags, parameters = described.flags, described.parameters
    problems = [f"{queue}: no such queue" for queue in described.unknown]
    usable: list[QueueTarget] = []
    for target in chosen:
        if target.queue not in parameters or target.queue not in flags:
            continue
        if wrong := targets.find_contradictions(target, parameters[target.queue]):
            problems.append(f"{target.queue}: no pilots are sent: {wrong}")
        else:
            usable.append(target)
    found = _fetch_work(client, vo, usable, parameters, flags)
    pools = {group: pools for each in found for group, pools in each.straight(vo).items()}
    work = tuple(collect_work(vo, found, sites.brokers))
    pools |= {group: () for each in work for group in each.groups if group.broker}
    return VoDemand(
        vo=vo,
        work=work,
        pools=pools,
        limits={queue: _limits(values, sites.places or _USUAL_LIMIT) for queue, values in parameters.items()},
        slots={(each.target.broker, each.target.queue): each.target.resources for each in found},
        too_small=tuple(_list_too_small(found, parameters)),
        problems=tuple(problems),
        config_version=described.config_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCheck:
    """What a file states, compared with the queues of a VO."""

    wrong: list[str]  #: contradictions
    unknown: list[str]  #: queues that do not exist
    queues: list[QueueTarget]  #: with the slots of their pilots


def check_slots(client: ServiceClient, vo: str, sites: DirectorTargets) -> SlotCheck:
    """Compare the file with the parameters of the queues."""
    chosen = sites.all_targets(vo)
    described = _fetch_queues(client, vo, sorted({target.queue for target in chosen}))
    known = [each for each in chosen if each.queue in described.parameters]
    found = {
        each.queue: targets.find_contradictions(each, described.parameters[each.queue]) for each in known
    }
    return SlotCheck(
        wrong=[f"{queue}: {contradiction}" for queue, contradiction in found.items() if contradiction],
        unknown=[f"{queue}: no such queue" for queue in described.unknown],
        queues=[
            replace(
                each,
                batch_queue=sites.entry_of(each),
                resources=targets.find_slot(each, described.parameters[each.queue]),
            )
            for each in known
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DescribedQueues:
    flags: Mapping[str, list[Any]]  #: pools by flags, of each queue
    parameters: Mapping[str, Mapping[str, object]]  #: of those that the VO may use
    unknown: Sequence[str]
    config_version: int


def _fetch_queues(client: ServiceClient, vo: str, names: Sequence[str]) -> _DescribedQueues:
    flags: dict[str, list[Any]] = {}
    parameters: dict[str, Mapping[str, object]] = {}
    unknown: list[str] = []
    version = 0
    for begin in range(0, len(names), _MOST):
        some = names[begin : begin + _MOST]
        described = client.describe_queues(some, vo)
        parameters |= {each["queue"]: each["parameters"] for each in described["queues"] if each["usable"]}
        unknown += described["unknown"]
        version = max(version, described["config_version"])
        known = [each["queue"] for each in described["queues"]]
        if known:
            flags |= client.pilot_groups(known)["flags"]
    return _DescribedQueues(flags=flags, parameters=parameters, unknown=unknown, config_version=version)


def _fetch_work(
    client: ServiceClient,
    vo: str,
    chosen: Sequence[QueueTarget],
    parameters: Mapping[str, Mapping[str, object]],
    flags: Mapping[str, Iterable[Mapping[str, Any]]],
) -> list[TargetWork]:
    """The work for each target's slot, and beyond it where the file states less than the queue has."""
    own = [replace(each, resources=targets.find_slot(each, parameters[each.queue])) for each in chosen]
    unstated = [
        replace(each, resources=JobResources(), stated=frozenset())
        for each in chosen
        if targets.list_differences(each, parameters[each.queue])
    ]
    whole = [replace(each, resources=targets.find_slot(each, parameters[each.queue])) for each in unstated]
    job_filters = JobFilters(vo=vo)
    requests = [
        build_request(expected_offer(each, job_filters, parameters[each.queue]), each, parameters[each.queue])
        for each in (*own, *whole)
    ]
    answers = list(_fetch_demand(client, requests))
    beyond = {
        (each.broker, each.queue): answer.task_queues
        for each, answer in zip(whole, answers[len(own) :], strict=True)
    }
    return [
        TargetWork(
            target=target,
            groups={tuple(each["flags"]): tuple(each["pools"]) for each in flags[target.queue]},
            task_queues=answer.task_queues,
            ranks=answer.ranks,
            flags=answer.flags,
            beyond=beyond.get((target.broker, target.queue), ()),
        )
        for target, answer in zip(own, answers[: len(own)], strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResourceDemand:
    """What the service answers for one resource."""

    task_queues: tuple[TaskQueueWork, ...]  #: that it may serve
    ranks: Mapping[int, float]  #: of its queue, by task queue
    flags: Mapping[int, tuple[str, ...]]  #: of pilots for a task queue, where there are any


def _fetch_demand(
    client: ServiceClient, resources: Sequence[Mapping[str, object]]
) -> Iterator[_ResourceDemand]:
    """The task queues that each resource may serve, with the ranks of its queue and the flags for them."""
    begin = 0
    while begin < len(resources):
        answer = client.demand(resources[begin : begin + _count_fitting(resources[begin : begin + _MOST])])
        begin += len(answer["resources"]) or len(resources)
        known = {
            each["task_queue"]: TaskQueueWork(
                number=each["task_queue"],
                submit_pool=each["submit_pool"],
                waiting=each["waiting"],
                processors=each["processors"],
                ram=each["ram"],
                gpus=each["gpus"],
                whole_node=each["whole_node"],
            )
            for each in answer["task_queues"]
        }
        flag_sets = [tuple(each) for each in answer.get("flag_sets", ())]
        flags_of = answer.get("flags") or [()] * len(answer["resources"])  # a service of 1.0 has none
        for numbers, ranks, flags in zip(answer["resources"], answer["ranks"], flags_of, strict=True):
            yield _ResourceDemand(
                task_queues=tuple(known[number] for number in numbers),
                ranks={
                    number: rank for number, rank in zip(numbers, ranks, strict=False) if rank is not None
                },
                flags={number: flag_sets[each] for number, each in zip(numbers, flags, strict=False) if each},
            )


def _count_fitting(resources: Sequence[Mapping[str, object]]) -> int:
    """How many of these resources, from the first on, one request may have; at least one."""
    size = values = 0
    for number, each in enumerate(resources):
        text = json.dumps(each)
        size += len(text) + 1
        values += sum(map(text.count, ",:[{")) + 1
        if number and (size > _MOST_BYTES or values > _MOST_VALUES):
            return number
    return len(resources)


def _list_too_small(
    found: Sequence[TargetWork], parameters: Mapping[str, Mapping[str, object]]
) -> Iterator[UnservedWork]:
    """Work that a queue allows and no slot has room for."""
    served = {task_queue.number for each in found for task_queue in each.task_queues}
    for each in found:
        left = [task_queue for task_queue in each.beyond if task_queue.number not in served]
        if left:
            differences = targets.list_differences(each.target, parameters[each.target.queue])
            yield UnservedWork(
                queue=each.target.queue,
                slot=", ".join(f"{name} {amount} of {most}" for name, (amount, most) in differences.items()),
                jobs=sum(task_queue.waiting for task_queue in left),
                task_queues=[task_queue.number for task_queue in left[:_MOST]],
            )


def expected_offer(
    target: QueueTarget, job_filters: JobFilters, parameters: Mapping[str, object]
) -> offer.Offer:
    """The offer that a pilot in a slot of this target will make, by the pilot's own rules."""
    site, ce, queue = target.queue.split("/")
    slot = target.resources
    stated = Slot(
        lifetime=slot.wall_time,
        max_ram=slot.memory,
        processors=slot.cores,
        gpus=slot.gpus,
        whole_node=slot.whole_node,
    )
    return offer.make_offer(QueuePlace(site, ce, queue), stated, job_filters, dict(parameters))


def build_request(
    made: offer.Offer, target: QueueTarget, parameters: Mapping[str, object]
) -> dict[str, object]:
    """The request of one that has no node yet: what would be measured there nobody knows."""
    said = made.at(0)
    said.pop("NodeFacts", None)
    if made.measured_power:
        said[offer.POWER] = made.measured_power
    said.update(offer.read_node_parameters(parameters))
    states_memory = any(
        targets.read_number(parameters, name) is not None for name in ("MaxRAM", "MaxRAMPerCore")
    )
    if target.resources.memory is None and not states_memory:
        said.pop("MaxRAM", None)  # it is this host's
    return said


def _limits(parameters: Mapping[str, object], usual: int = _USUAL_LIMIT) -> QueueLimits:
    total, waiting = (targets.read_number(parameters, name) for name in ("MaxTotalJobs", "MaxWaitingJobs"))
    return QueueLimits(
        total=usual if total is None else int(total), waiting=usual if waiting is None else int(waiting)
    )
