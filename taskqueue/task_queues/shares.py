"""Weights of task queues in the lottery: shares of groups, split by waiting work, corrected by usage.

A group splits its share evenly among the owners that have waiting jobs, or keeps it whole if it has the
property JobSharing. The share of such a holder is split over its task queues in proportion to their raw
weights.

Task queues of one owner whose classes differ in sites and memory only are one *family*: each has the weight
of all of them together, so that splitting work by site costs nothing at a site that matches one part. Alone,
that would let one owner win several times at a site that matches several parts; therefore the lottery
divides the weight by the number of the family's members that the resource may serve
(`matcher.index.sampling`). DIRAC does not.

Shares are corrected by usage over several slices of time. In each, the factor of a holder is the fraction
due over the fraction used, within bounds; the slices are averaged by their weights. The sum of the shares
stays the same.

Source: DIRAC TaskQueueDB and SharesCorrector; in the latter the sum of the shares may grow.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import fsum
from operator import attrgetter
from typing import Generic, TypeVar

from cs_config.options.registry import Group
from requirements.requirement_class import RequirementClass

#: Minimum weight of a task queue, so that it is served at all.
FLOOR = 0.001
#: Maximum raw weight of a task queue with background jobs only.
BACKGROUND = 0.1
#: Property of groups whose members share one share.
JOB_SHARING = "JobSharing"

#: Fields in which members of a family may differ.
_FREE = frozenset(
    {
        *("sites", "banned_sites", "replicas", "min_ram", "max_ram", "min_ram_per_core"),
        *("stated", "derived_with"),
    }
)
#: What the jobs of members may state or not.
_FREE_STATEMENTS = frozenset({"sites", "banned_sites", "min_ram_mb", "max_ram_mb", "min_ram_per_core_mb"})
_family = attrgetter(*(field.name for field in fields(RequirementClass) if field.name not in _FREE))
_NEVER_FIRST, _ALWAYS_FIRST = 0.001, 10.0  # user priorities


@dataclass(frozen=True, slots=True)
class ShareHolder:
    """A group, or one owner in a group, that has a share."""

    vo: str
    owner_group: str
    owner: str | None = None  #: None: the group as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDemand:
    """A task queue with waiting jobs."""

    task_queue_id: int
    vo: str
    owner_group: str
    owner: str
    family: Hashable  #: equal for members of a family
    raw: float  #: mean of `compute_job_weight` over its jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSplit:
    """How the shares of a VO are split over its task queues with jobs, from the group to the weight."""

    stated: Mapping[ShareHolder, float]  #: of groups, as configured
    of_groups: Mapping[ShareHolder, float]  #: the same, corrected by usage
    even: Mapping[ShareHolder, float]  #: of groups with JobSharing, and of the owners of the others
    of_holders: Mapping[ShareHolder, float]  #: the same, corrected by usage
    weights: Mapping[int, float]  #: by task queue


def compute_job_weight(user_priority: float) -> float:
    """Weight of a job by its user priority: 10 is "always first", 0 "only if there is nothing else"."""
    if user_priority <= _NEVER_FIRST:
        return 1e-5
    return 1e6 if user_priority >= _ALWAYS_FIRST else user_priority


def compute_raw_weight(jobs: Mapping[float, int]) -> float:
    """Mean weight of jobs, given the number of jobs for each user priority."""
    return fsum(compute_job_weight(each) * count for each, count in jobs.items()) / sum(jobs.values())


def derive_family(requirement_class: RequirementClass) -> Hashable:
    """The values of a class that are equal within a family, and what else than sites and memory it states.

    Jobs that state a default or a priority are apart from those that do not: the same resources serve both,
    so nothing is split, and priorities, which do not count within a family, decide between them.
    """
    stated = requirement_class.stated
    names = None if stated is None else frozenset(name for name, _ in stated) - _FREE_STATEMENTS
    return *_family(requirement_class), names


def compute_group_shares(
    demands: Iterable[ShareDemand], groups: Mapping[ShareHolder, Group]
) -> dict[ShareHolder, float]:
    """The shares of the groups that have waiting jobs."""
    return {group: groups[group].job_share for group in {_get_group(demand) for demand in demands}}


def compute_holder_shares(
    demands: Iterable[ShareDemand], groups: Mapping[ShareHolder, Group], shares: Mapping[ShareHolder, float]
) -> dict[ShareHolder, float]:
    """Split the shares of groups over their owners, except in groups with JobSharing."""
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
    """The weight of each task queue, from the result of `compute_holder_shares`."""
    of_entity: defaultdict[ShareHolder, list[ShareDemand]] = defaultdict(list)
    for demand in demands:
        of_entity[_get_holder(demand, groups)].append(demand)
    found: dict[int, float] = {}
    for entity, members in of_entity.items():
        background = groups[ShareHolder(entity.vo, entity.owner_group)].allow_background_tqs
        found |= _split_share(members, shares[entity], allow_background=background)
    return found


def _split_share(demands: Sequence[ShareDemand], share: float, *, allow_background: bool) -> dict[int, float]:
    """Split a holder's share over its task queues; then each member of a family gets the family's sum."""
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
    """Usage in a slice of time."""

    used: Mapping[Holder, float]  #: in any unit; 0 for missing holders
    weight: float  #: relative to the other slices
    max_correction: float  #: at least 1: the factor is between its inverse and itself


def correct_shares(
    due: Mapping[Holder, float], slices: Sequence[UsageSlice[Holder]], *, max_correction: float
) -> Mapping[Holder, float]:
    """Correct the shares of all holders with waiting jobs by their usage.

    Slices without usage by any of them do not count. `max_correction`, at least 1, bounds a holder's factor
    over all slices.
    """
    relevant = [each for each in slices if _sum_usage(each.used, due)]
    total = fsum(due.values())
    if not relevant or not total:
        return due
    weight = fsum(each.weight for each in relevant)
    moved = dict.fromkeys(due, 0.0)
    for who, share in due.items():
        factor = fsum(each.weight / weight * _compute_factor(who, due, each) for each in relevant)
        moved[who] = share * _clamp(factor, max_correction)
    scale = total / fsum(moved.values())
    return {who: share * scale for who, share in moved.items()}


def _compute_factor(who: Holder, due: Mapping[Holder, float], given: UsageSlice[Holder]) -> float:
    expected = due[who] / fsum(due.values())
    used = given.used.get(who, 0.0) / _sum_usage(given.used, due)
    return _clamp(expected / used, given.max_correction) if used else given.max_correction


def _sum_usage(used: Mapping[Holder, float], due: Mapping[Holder, float]) -> float:
    """Usage of the holders with waiting jobs."""
    return fsum(used.get(each, 0.0) for each in due)


def _clamp(factor: float, most: float) -> float:
    return min(max(factor, 1 / most), most)
