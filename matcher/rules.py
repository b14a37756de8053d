"""Matching rules: when a job and a resource fit, one condition a line. This is the specification.

The class index gives the same results for many classes at once; a property test holds the two equal. A value
that the resource does not state, or the class does not demand, is no condition. Source: DIRAC TaskQueueDB,
with two errors corrected: one of several sites must be both wanted and not banned, and any banned value
excludes.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from requirements.requirement_class import RequirementClass
from requirements.resource import Exclusion, Resource, Values
from requirements.values import fold

#: Name of a condition; they are listed in the order in which people check them.
Condition = str

#: Fields of a class with names; a resource has fields of the same names.
NAMED = ("sites", "grid_ces", "platforms", "job_types", "tags")
_OWNERS = frozenset({"owners", "owner_groups"})
#: Minimum that a class needs, by condition.
NEEDS: Mapping[str, Callable[[RequirementClass], float]] = {
    "cpu_time": lambda asked: asked.cpu_time,
    "ram": lambda asked: needed_ram(asked),
    "processors": lambda asked: asked.processors_min,
    "gpus": lambda asked: asked.gpus,
}


def refusals(asked: RequirementClass, resource: Resource, pools: Collection[str]) -> tuple[Condition, ...]:
    """All conditions that the resource and class fail; empty: the resource may run such jobs.

    `pools` are the submit pools that may run at the resource's place.
    """
    refused = [name for name, fits in _CONDITIONS.items() if not fits(asked, resource)]
    if asked.submit_pool is not None and asked.submit_pool not in pools:
        refused.append("submit_pool")
    return tuple(refused)


def fits(asked: RequirementClass, resource: Resource) -> bool:
    """Whether the resource may run jobs of this class, apart from pools."""
    return all(holds(asked, resource) for holds in _CONDITIONS.values())


def refuses(condition: Condition, asked: RequirementClass, resource: Resource) -> bool:
    """Whether the resource fails this one condition of the class."""
    return not _CONDITIONS[condition](asked, resource)


def capacities(resource: Resource) -> Mapping[str, float | None]:
    """The resource's capacity for each of `NEEDS`; None: not stated."""
    return {
        "cpu_time": resource.cpu_time,
        "ram": resource.max_ram,
        "processors": resource.processors,
        "gpus": resource.gpus,
    }


def owner_fits(asked: RequirementClass, owner: str, owner_group: str, resource: Resource) -> bool:
    """Whether the resource accepts jobs of this class with this owner and group.

    A resource for one owner of a group that shares its jobs also accepts those of the group's other members.
    """
    if not _accepts(owner_group, resource.owner_groups):
        return False
    shares = resource.owner_groups is not None and fold(owner_group) in resource.sharing_groups
    if not shares and not _accepts(owner, resource.owners):
        return False
    if not resource.excluded:
        return True
    names = _names(asked) | {"owners": fold_names([owner]), "owner_groups": fold_names([owner_group])}
    return not any(_excludes(each, names) for each in resource.excluded if concerns_owners(each))


def accepts_all_owners(resource: Resource) -> bool:
    """Whether `owner_fits` for every owner and group."""
    is_open = resource.owners is None and resource.owner_groups is None
    return is_open and not any(map(concerns_owners, resource.excluded))


def concerns_owners(exclusion: Exclusion) -> bool:
    """Whether the exclusion depends on the owner."""
    return any(name in _OWNERS for name, _ in exclusion)


def needed_ram(asked: RequirementClass, cores: int | None = None) -> int:
    """MB that a job of this class needs on this many cores (None: its minimum): base plus a part per core."""
    return asked.min_ram + asked.min_ram_per_core * (asked.processors_min if cores is None else cores)


def fold_names(names: Collection[str]) -> frozenset[str]:
    """Names folded for comparison."""
    return _fold_list(names) if isinstance(names, frozenset) else frozenset(map(fold, names))


@lru_cache(maxsize=50_000)
def _fold_list(names: frozenset[str]) -> frozenset[str]:
    """Names, folded. Cached: thousands of classes have long lists of sites, compared with every queue."""
    return frozenset(map(fold, names))


def _accepts(name: str, wanted: Values) -> bool:
    return wanted is None or fold(name) in wanted


def _has(name: str) -> Callable[[RequirementClass, Resource], bool]:
    def fits(asked: RequirementClass, resource: Resource) -> bool:
        capacity = capacities(resource)[name]
        return capacity is None or NEEDS[name](asked) <= capacity

    return fits


def _meets(wanted: Collection[str], offered: Values) -> bool:
    return not wanted or offered is None or not offered.isdisjoint(fold_names(wanted))


def _site(asked: RequirementClass, resource: Resource) -> bool:
    if resource.sites is None:
        return True
    allowed = resource.sites - fold_names(asked.banned_sites)
    return bool(allowed) and _meets(asked.sites, allowed)


def _job_type(asked: RequirementClass, resource: Resource) -> bool:
    """A resource that names no type accepts all types but those that only job managers handle."""
    if resource.job_types is not None or not asked.job_types:
        return _meets(asked.job_types, resource.job_types)
    return resource.managed_types_of(fold(asked.vo)).isdisjoint(fold_names(asked.job_types))


def _names(asked: RequirementClass) -> dict[str, frozenset[str]]:
    return {name: fold_names(getattr(asked, name)) for name in NAMED}


def _excludes(exclusion: Exclusion, names: Mapping[str, frozenset[str]]) -> bool:
    return all(not values.isdisjoint(names[name]) for name, values in exclusion)


def _not_excluded(asked: RequirementClass, resource: Resource) -> bool:
    names = _names(asked) if resource.excluded else {}
    return not any(_excludes(each, names) for each in resource.excluded if not concerns_owners(each))


def _not_banned(asked: RequirementClass, resource: Resource) -> bool:
    names = _names(asked)
    return all(banned.isdisjoint(names[name]) for name, banned in resource.banned.items())


_CONDITIONS: Mapping[Condition, Callable[[RequirementClass, Resource], bool]] = {
    "vo": lambda asked, resource: _accepts(asked.vo, resource.vos),
    "cpu_time": _has("cpu_time"),
    "site": _site,
    "input_data": lambda asked, resource: all(_meets(each, resource.near) for each in asked.replicas),
    "grid_ce": lambda asked, resource: _meets(asked.grid_ces, resource.grid_ces),
    "platform": lambda asked, resource: _meets(asked.platforms, resource.platforms),
    "job_type": lambda asked, resource: _job_type(asked, resource),
    "tag": lambda asked, resource: resource.tags is None or fold_names(asked.tags) <= resource.tags,
    "required_tag": lambda asked, resource: resource.required_tags <= fold_names(asked.tags),
    "banned": _not_banned,
    "ram": _has("ram"),
    "processors": _has("processors"),
    "gpus": _has("gpus"),
    "whole_node": lambda asked, resource: resource.offers_whole_node or not asked.whole_node,
    "limits": _not_excluded,
}
