"""Weights of task queues for the lottery: shares of groups, split by waiting work, and their correction.

A group splits its share evenly among the owners that have waiting jobs, or keeps it whole if it has the
property JobSharing. The share of an owner (or such a group) is split over its task queues in proportion to
their raw weights.

Task queues of one owner whose definitions differ in sites and memory only are one *family*: each has the
weight of all of them together, so splitting work by site costs nothing at a place that matches one part.
Alone, that would let one owner win several times at a place that matches several parts; therefore the
lottery divides the weight by the number of the family's members that the resource may serve
(`matcher.lottery`). DIRAC does not.

Shares are corrected by usage over several slices of time. In each, the factor of a holder is the fraction
due over the fraction used, within bounds; the slices count by their weights. The sum of the holders'
shares stays the same.

Source: DIRAC TaskQueueDB and SharesCorrector; in the latter the sum of the shares may grow.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import fsum
from operator import attrgetter
from typing import Generic, TypeVar

from cs_config.options.groups import Group
from taskqueue.task_queues.requirement_class import RequirementClass

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
class ShareHolder:
    """Who has a share: a group, or one owner in a group."""

    vo: str
    owner_group: str
    owner: str | None = None  #: None: the group as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDemand:
    """A task queue that has waiting jobs."""

    task_queue_id: int
    vo: str
    owner_group: str
    owner: str
    family: Hashable  #: equal for task queues that weigh as much as all of them together
    raw: float  #: mean of `real_priority` over its jobs


def compute_job_weight(user_priority: float) -> float:
    """The weight of a job among others: 10 is "always first", 0 "only if there is nothing else"."""
    if user_priority <= _NEVER_FIRST:
        return 1e-5
    return 1e6 if user_priority >= _ALWAYS_FIRST else user_priority


def compute_raw_weight(jobs: Mapping[float, int]) -> float:
    """Mean weight of jobs, given how many there are of each user priority; how many does not matter."""
    return fsum(compute_job_weight(each) * count for each, count in jobs.items()) / sum(jobs.values())


def derive_family(requirement_class: RequirementClass) -> Hashable:
    """What task queues of one owner have in common that are one family."""
    return _family(requirement_class)


def compute_group_shares(
    demands: Iterable[ShareDemand], groups: Mapping[ShareHolder, Group]
) -> dict[ShareHolder, float]:
    """The shares of the groups that have jobs waiting now."""
    return {group: groups[group].job_share for group in {_get_group(demand) for demand in demands}}


def compute_holder_shares(
    demands: Iterable[ShareDemand], groups: Mapping[ShareHolder, Group], shares: Mapping[ShareHolder, float]
) -> dict[ShareHolder, float]:
    """The shares of groups, split over their owners where these do not have it together."""
    owners = {_get_holder(demand, groups) for demand in demands}
    count = Counter(ShareHolder(each.vo, each.owner_group) for each in owners)
    return {
        each: shares[group] / count[group]
        for each in owners
        for group in (ShareHolder(each.vo, each.owner_group),)
    }


def compute_weights(
    demands: Iterable[ShareDemand], groups: Mapping[ShareHolder, Group], shares: Mapping[ShareHolder, float]
) -> dict[int, float]:
    """The weight of each task queue.

    Args:
        demands: The task queues with waiting jobs.
        groups: The group of each of them, under the entity without owner.
        shares: What each entity of `of_entities` has to give.
    """
    of_entity: defaultdict[ShareHolder, list[ShareDemand]] = defaultdict(list)
    for demand in demands:
        of_entity[_get_holder(demand, groups)].append(demand)
    found: dict[int, float] = {}
    for entity, members in of_entity.items():
        background = groups[ShareHolder(entity.vo, entity.owner_group)].allow_background_tqs
        found |= _split_share(members, shares[entity], allow_background=background)
    return found


def _split_share(demands: Sequence[ShareDemand], share: float, *, allow_background: bool) -> dict[int, float]:
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


def _get_group(demand: ShareDemand) -> ShareHolder:
    return ShareHolder(demand.vo, demand.owner_group)


def _get_holder(demand: ShareDemand, groups: Mapping[ShareHolder, Group]) -> ShareHolder:
    group = _get_group(demand)
    return group if JOB_SHARING in groups[group].properties else replace(group, owner=demand.owner)


Holder = TypeVar("Holder", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSlice(Generic[Holder]):
    """What was used in a slice of time."""

    used: Mapping[Holder, float]  #: in any unit; who is not in it used nothing
    weight: float  #: among the slices
    max_correction: float  #: at least 1: the factor is between its inverse and itself


def correct_shares(
    due: Mapping[Holder, float], slices: Sequence[UsageSlice[Holder]], *, max_correction: float
) -> Mapping[Holder, float]:
    """The shares as they are to be now.

    Args:
        due: The shares of all who have jobs waiting.
        slices: What was used; those in which none of them used anything do not count.
        max_correction: Bound of a holder's factor over all slices, at least 1.
    """
    telling = [each for each in slices if _sum_usage(each.used, due)]
    total = fsum(due.values())
    if not telling or not total:
        return due
    weight = fsum(each.weight for each in telling)
    moved = dict.fromkeys(due, 0.0)
    for who, share in due.items():
        factor = fsum(each.weight / weight * _compute_factor(who, due, each) for each in telling)
        moved[who] = share * _clamp(factor, max_correction)
    scale = total / fsum(moved.values())
    return {who: share * scale for who, share in moved.items()}


def _compute_factor(who: Holder, due: Mapping[Holder, float], given: UsageSlice[Holder]) -> float:
    expected = due[who] / fsum(due.values())
    used = given.used.get(who, 0.0) / _sum_usage(given.used, due)
    return _clamp(expected / used, given.max_correction) if used else given.max_correction


def _sum_usage(used: Mapping[Holder, float], due: Mapping[Holder, float]) -> float:
    """What those used who have jobs waiting."""
    return fsum(used.get(each, 0.0) for each in due)


def _clamp(factor: float, most: float) -> float:
    return min(max(factor, 1 / most), most)
