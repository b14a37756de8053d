"""Allotment of one resource to several jobs: the remaining capacity, and each job's share.

Every job first gets its minimum, so that as many as possible fit; the rest goes evenly to those that can use
more.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final

from matcher import conditions, rules
from matcher.conditions import CONDITIONS
from requirements.quantities import QUANTITIES, SlotQuantity
from requirements.requirement_class import RequirementClass
from requirements.resource import ALLOTTED, Allotment, Resource
from taskqueue.pilots.slots import SlotRoom

_SHARED: Final = tuple(each for each in CONDITIONS if each.allotted or each.shared)
#: What a job needs of each shared capacity, by the field of its allotment or the name of the condition.
_NEEDS: Final = {each.allotted or each.name: conditions.NEEDS[each.name] for each in _SHARED}
#: The attributes of `Resource` for them.
_CAPACITIES: Final = {each.allotted or each.name: each.capacity for each in _SHARED}
#: What decides the allotment of a job that has a resource for itself.
JobSize = tuple[int | None, ...]


#: The size of the jobs of a class. Read for each claim.
read_size: Final[Callable[[RequirementClass], JobSize]] = attrgetter(
    *("processors_min", "processors_max", "cpu_work_db12", "min_ram", "max_ram", "min_ram_per_core"),
    "whole_node",
    *(name for each in QUANTITIES for name in (each.upper, each.name)),
)


def _list_needs(asked: RequirementClass) -> dict[str, int]:
    return {name: need(asked) for name, need in _NEEDS.items()}


def _list_capacities(resource: Resource) -> dict[str, float | None]:
    return {name: getattr(resource, attribute) for name, attribute in _CAPACITIES.items()}


_UNSTATED: Final = _list_capacities(Resource(cpu_time=0))


class SlotAllotment:
    """Remaining capacity of a resource while jobs are taken for it.

    Capacities that the resource does not state are not shared. A resource that states none of them states
    what each job may use alone, and is never full.
    """

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._left = _list_capacities(resource)
        self._is_shared = self._left != _UNSTATED
        self._jobs: list[RequirementClass] = []

    @property
    def full(self) -> bool:
        """Whether no further job fits, whatever its class."""
        return self._is_shared and (self._is_given_whole or self._left["processors"] == 0)

    def most(self, asked: RequirementClass, wanted: int) -> int:
        """How many of the wanted jobs of a class, which fits the whole resource, fit in what is left."""
        asked = self._fit(asked)
        if not self._is_shared:
            return wanted
        if self.full:
            return 0
        if asked.whole_node:
            return min(wanted, 0 if self._jobs else 1)
        needs = [(self._left[name], need) for name, need in _list_needs(asked).items() if need]
        return int(max(0, min([wanted, *(left // need for left, need in needs if left is not None)])))

    def take(self, asked: RequirementClass, jobs: int) -> None:
        """Account for taken jobs of a class."""
        asked = self._fit(asked)
        self._jobs += [asked] * jobs
        for name, need in _list_needs(asked).items():
            left = self._left[name]
            self._left[name] = None if left is None else left - jobs * need

    def _fit(self, asked: RequirementClass) -> RequirementClass:
        """The class with the cores that its CPU work needs here."""
        cores = rules.needed_cores(asked, self._resource)
        return asked if cores == asked.processors_min else replace(asked, processors_min=cores)

    def allotments(self) -> list[Allotment]:
        """The allotment of each job in the order of taking; their sum never exceeds the resource."""
        if not self._is_shared:
            return [_share_of_one(self._resource, asked) for asked in self._jobs]
        if self._is_given_whole:
            return [_whole_resource(self._resource)]
        cores = self._cores()
        memory = self._memory(cores)
        quantities = {each.name: self._share_quantity(each) for each in QUANTITIES}
        return [
            replace(
                _allot(_list_needs(asked)),
                processors=cores[job],
                ram_mb=memory[job],
                **{name: given[job] for name, given in quantities.items()},
            )
            for job, asked in enumerate(self._jobs)
        ]

    @property
    def _is_given_whole(self) -> bool:
        return any(asked.whole_node for asked in self._jobs[:1])

    def _cores(self) -> list[int]:
        """Processors by job: the minimum, then one more for the job with fewest while any are left."""
        cores = [asked.processors_min for asked in self._jobs]
        growing = [(number, job) for job, number in enumerate(cores)]
        heapify(growing)
        spare, ram = self._left["processors"] or 0, self._left["ram_mb"]
        while spare > 0 and growing:  # less than 0: the job does not fit
            number, job = heappop(growing)
            asked = self._jobs[job]
            if _allowed_cores(asked, number + 1) and (ram is None or asked.min_ram_per_core <= ram):
                cores[job] = number + 1
                spare -= 1
                ram = None if ram is None else ram - asked.min_ram_per_core
                heappush(growing, (number + 1, job))
        return cores

    def _share_quantity(self, quantity: SlotQuantity) -> list[int]:
        """A quantity by job: the minimum, then up to its upper bound while any is left."""
        spare = int(self._left[quantity.name] or 0)
        found = []
        for asked in self._jobs:
            least, most = getattr(asked, quantity.name), getattr(asked, quantity.upper) or 0
            more = max(0, min(spare, most - least)) if least else 0
            spare -= more
            found.append(least + more)
        return found

    def _memory(self, cores: list[int]) -> list[int | None]:
        """MB by job: the need of its processors, then up to its limit while memory is left."""
        needed = [rules.needed_ram(asked, number) for asked, number in zip(self._jobs, cores, strict=True)]
        capacity = self._resource.max_ram
        spare = None if capacity is None else int(capacity) - sum(needed)
        found: list[int | None] = []
        for asked, least in zip(self._jobs, needed, strict=True):
            more_wanted = max(0, (asked.max_ram or 0) - least)
            more = more_wanted if spare is None else min(more_wanted, spare)
            spare = None if spare is None else spare - more
            found.append(least + more or None)
        return found


def allot_one(resource: Resource, asked: RequirementClass) -> Allotment:
    """The allotment of a job that has a resource for itself."""
    filling = SlotAllotment(resource)
    filling.take(asked, 1)
    [given] = filling.allotments()
    return given


def bound_by_room(resource: Resource, count: int, room: SlotRoom | None) -> tuple[Resource, int]:
    """What a request for jobs may use of a resource, and how many jobs it may get.

    The jobs of a pilot leave only so much `room`, and have their processors; None: it is no pilot's request.
    """
    if room is None:
        return resource, count
    if not (room.is_empty and count == 1):
        stated = resource.processors
        processors = room.processors if stated is None else min(stated, room.processors)
        resource = replace(resource, processors=processors)
    return resource, min(count, room.jobs)


def build_core_counter(resource: Resource, *, is_only: bool) -> Callable[[RequirementClass], int]:
    """Build what counts the processors that a job of a class is given, alone or beside others (`fix_cores`).

    A limit on cores asks for each task queue and job, of which thousands have the same size.
    """
    known: dict[JobSize, int] = {}

    def count(asked: RequirementClass) -> int:
        size = read_size(asked)
        if size not in known:
            given = allot_one(resource, asked if is_only else fix_cores(asked))
            known[size] = 1 if given.processors is None else given.processors
        return known[size]

    return count


def fix_cores(asked: RequirementClass) -> RequirementClass:
    """The class of a job that gets as few processors as it needs, since a limit counts them."""
    return replace(asked, processors_max=asked.processors_min)


def _allowed_cores(asked: RequirementClass, cores: int) -> bool:
    if asked.processors_max is not None and cores > asked.processors_max:
        return False
    return not asked.max_ram or rules.needed_ram(asked, cores) <= asked.max_ram


def _share_of_one(resource: Resource, asked: RequirementClass) -> Allotment:
    """The allotment of a job on a resource that does not state its processors."""
    if asked.whole_node:
        return _whole_resource(resource)
    return allot_one(replace(resource, processors=asked.processors_min), asked)


def _whole_resource(resource: Resource) -> Allotment:
    capacities = _list_capacities(resource)
    return _allot({name: None if value is None else int(value) for name, value in capacities.items()})


def _allot(amounts: Mapping[str, int | None]) -> Allotment:
    return Allotment(**{name: amounts[name] for name in ALLOTTED})
