"""What task queues weigh in the lottery: the share of their group, split by what waits in them.

A group shares its share evenly among the owners that have jobs waiting now, or has it as a whole if it
has the property JobSharing. What an owner (or such a group) gets is split over its task queues in
proportion to their raw weights.

Task queues of one owner whose definitions differ in sites and memory only are one *family*: each weighs
as much as all of them together. So who splits work by site loses nothing at a place that one part fits.
Taken alone, that would let the same owner win several times at a place that several parts fit; therefore
the lottery divides the weight by the number of the family's members that the resource at hand may serve
(`matcher.lottery`). DIRAC does not.

Source: DIRAC TaskQueueDB.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import fsum
from operator import attrgetter

from cs_config.groups import Group
from taskqueue.classes import RequirementClass

#: No task queue weighs less: it would never be served.
FLOOR = 0.001
#: Raw weight of a task queue with background jobs only, at most.
BACKGROUND = 0.1
#: Property of groups whose members have their share together.
JOB_SHARING = "JobSharing"

#: What members of a family may differ in.
_FREE = frozenset({"sites", "banned_sites", "min_ram", "max_ram", "min_ram_per_core"})
_family = attrgetter(*(field.name for field in fields(RequirementClass) if field.name not in _FREE))
_NEVER_FIRST, _ALWAYS_FIRST = 0.001, 10.0  # user priorities


@dataclass(frozen=True, slots=True)
class Entity:
    """Who has a share: a group, or one owner in a group."""

    vo: str
    owner_group: str
    owner: str | None = None  #: None: the group as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A task queue that has waiting jobs."""

    task_queue_id: int
    vo: str
    owner_group: str
    owner: str
    family: Hashable  #: equal for task queues that weigh as much as all of them together
    raw: float  #: mean of `real_priority` over its jobs


def real_priority(user_priority: float) -> float:
    """The weight of a job among others: 10 is "always first", 0 "only if there is nothing else"."""
    if user_priority <= _NEVER_FIRST:
        return 1e-5
    return 1e6 if user_priority >= _ALWAYS_FIRST else user_priority


def raw_weight(jobs: Mapping[float, int]) -> float:
    """Mean weight of jobs, given how many there are of each user priority; how many does not matter."""
    return fsum(real_priority(each) * count for each, count in jobs.items()) / sum(jobs.values())


def family(requirement_class: RequirementClass) -> Hashable:
    """What task queues of one owner have in common that are one family."""
    return _family(requirement_class)


def of_groups(demands: Iterable[Demand], groups: Mapping[Entity, Group]) -> dict[Entity, float]:
    """The shares of the groups that have jobs waiting now."""
    return {group: groups[group].job_share for group in {_group(demand) for demand in demands}}


def of_entities(
    demands: Iterable[Demand], groups: Mapping[Entity, Group], shares: Mapping[Entity, float]
) -> dict[Entity, float]:
    """The shares of groups, split over their owners where these do not have it together."""
    owners = {_entity(demand, groups) for demand in demands}
    count = Counter(Entity(each.vo, each.owner_group) for each in owners)
    return {
        each: shares[group] / count[group]
        for each in owners
        for group in (Entity(each.vo, each.owner_group),)
    }


def weights(
    demands: Iterable[Demand], groups: Mapping[Entity, Group], shares: Mapping[Entity, float]
) -> dict[int, float]:
    """The weight of each task queue.

    Args:
        demands: The task queues with waiting jobs.
        groups: The group of each of them, under the entity without owner.
        shares: What each entity of `of_entities` has to give.
    """
    of_entity: defaultdict[Entity, list[Demand]] = defaultdict(list)
    for demand in demands:
        of_entity[_entity(demand, groups)].append(demand)
    found: dict[int, float] = {}
    for entity, members in of_entity.items():
        background = groups[Entity(entity.vo, entity.owner_group)].allow_background_tqs
        found |= _split(members, shares[entity], allow_background=background)
    return found


def _split(demands: Sequence[Demand], share: float, *, allow_background: bool) -> dict[int, float]:
    """One entity's share over its task queues; its families then weigh what their members do together."""
    counted = [each.raw for each in demands if not (allow_background and each.raw <= BACKGROUND)]
    total = fsum(counted)
    alone = {
        each.task_queue_id: (
            FLOOR if allow_background and each.raw <= BACKGROUND else max(share * (each.raw / total), FLOOR)
        )
        for each in demands
    }
    families: defaultdict[Hashable, list[int]] = defaultdict(list)
    for each in demands:
        families[each.owner, each.family].append(each.task_queue_id)
    return {
        member: together
        for members in families.values()
        for together in (fsum(alone[each] for each in members),)
        for member in members
    }


def _group(demand: Demand) -> Entity:
    return Entity(demand.vo, demand.owner_group)


def _entity(demand: Demand, groups: Mapping[Entity, Group]) -> Entity:
    group = _group(demand)
    return group if JOB_SHARING in groups[group].properties else replace(group, owner=demand.owner)
