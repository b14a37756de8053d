"""When a job and a resource meet: the specification, one condition a line.

The index answers the same for many classes at once; a property test holds the two equal. Where a resource
says nothing there is no condition; where a class asks nothing it fits. Source: DIRAC TaskQueueDB, without
its slips: of several sites one has to be both wanted and not banned, any banned value excludes.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from matcher.request.resource import Exclusion, Resource, Values
from requirements.values import fold
from taskqueue.task_queues.requirement_class import RequirementClass

#: What a refusal is called, in the order in which people look for it.
Condition = str

#: What a class names, under the names that resources have for it.
NAMED: Mapping[str, Callable[[RequirementClass], frozenset[str]]] = {
    "sites": lambda asked: asked.sites,
    "grid_ces": lambda asked: asked.grid_ces,
    "platforms": lambda asked: asked.platforms,
    "job_types": lambda asked: asked.job_types,
    "tags": lambda asked: asked.tags,
}
_OWNERS = frozenset({"owners", "owner_groups"})
#: How much a class must have at least of what is counted, under the names of conditions.
NEEDS: Mapping[str, Callable[[RequirementClass], float]] = {
    "cpu_time": lambda asked: asked.cpu_time,
    "ram": lambda asked: needed_ram(asked),
    "processors": lambda asked: asked.processors_min,
    "gpus": lambda asked: asked.gpus,
}


def refusals(asked: RequirementClass, resource: Resource, pools: Collection[str]) -> tuple[Condition, ...]:
    """Every condition that keeps the resource from running jobs of this class; empty: it may.

    Args:
        asked: What the jobs ask.
        resource: What the pilot offers.
        pools: The submit pools that may run where it is.
    """
    refused = [name for name, fits in _CONDITIONS.items() if not fits(asked, resource)]
    if asked.submit_pool is not None and asked.submit_pool not in pools:
        refused.append("submit_pool")
    return tuple(refused)


def fits(asked: RequirementClass, resource: Resource) -> bool:
    """Whether the resource may run jobs of this class where its pool may run."""
    return all(holds(asked, resource) for holds in _CONDITIONS.values())


def refuses(condition: Condition, asked: RequirementClass, resource: Resource) -> bool:
    """Whether this one condition keeps the resource from running jobs of the class."""
    return not _CONDITIONS[condition](asked, resource)


def capacities(resource: Resource) -> Mapping[str, float | None]:
    """How much a resource has of each of `NEEDS`; None: it does not say."""
    return {
        "cpu_time": resource.cpu_time,
        "ram": resource.max_ram,
        "processors": resource.processors,
        "gpus": resource.gpus,
    }


def owner_fits(asked: RequirementClass, owner: str, owner_group: str, resource: Resource) -> bool:
    """Whether the resource takes jobs of this owner and group, which are of this class.

    A resource for one owner of a group that shares its jobs takes those of the others, too.
    """
    if not _named_condition(owner_group, resource.owner_groups):
        return False
    shares = resource.owner_groups is not None and fold(owner_group) in resource.sharing_groups
    if not shares and not _named_condition(owner, resource.owners):
        return False
    if not resource.excluded:
        return True
    names = _names(asked) | {"owners": fold_names([owner]), "owner_groups": fold_names([owner_group])}
    return not any(_excludes(each, names) for each in resource.excluded if concerns_owners(each))


def concerns_owners(exclusion: Exclusion) -> bool:
    """Whether it takes the owner to tell who is left out."""
    return any(name in _OWNERS for name, _ in exclusion)


def needed_ram(asked: RequirementClass, cores: int | None = None) -> int:
    """MB that a job of this class needs on so many cores: a part of its own, and a part for each of them.

    Args:
        asked: What the job asks.
        cores: That it has; None: the least that it must have.
    """
    return asked.min_ram + asked.min_ram_per_core * (asked.processors_min if cores is None else cores)


def fold_names(names: Collection[str]) -> frozenset[str]:
    """Names as they compare."""
    return _fold_list(names) if isinstance(names, frozenset) else frozenset(map(fold, names))


@lru_cache(maxsize=50_000)
def _fold_list(names: frozenset[str]) -> frozenset[str]:
    """The lists of sites of thousands of classes are long, and the same for every queue."""
    return frozenset(map(fold, names))


def _named_condition(name: str, wanted: Values) -> bool:
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
    """A resource that names no type takes all but those that only job managers handle."""
    if resource.job_types is not None or not asked.job_types:
        return _meets(asked.job_types, resource.job_types)
    return resource.managed_types_of(fold(asked.vo)).isdisjoint(fold_names(asked.job_types))


def _names(asked: RequirementClass) -> dict[str, frozenset[str]]:
    return {name: fold_names(of(asked)) for name, of in NAMED.items()}


def _excludes(exclusion: Exclusion, names: Mapping[str, frozenset[str]]) -> bool:
    return all(not values.isdisjoint(names[name]) for name, values in exclusion)


def _not_excluded(asked: RequirementClass, resource: Resource) -> bool:
    names = _names(asked) if resource.excluded else {}
    return not any(_excludes(each, names) for each in resource.excluded if not concerns_owners(each))


def _not_banned(asked: RequirementClass, resource: Resource) -> bool:
    names = _names(asked)
    return all(banned.isdisjoint(names[name]) for name, banned in resource.banned.items())


_CONDITIONS: Mapping[Condition, Callable[[RequirementClass, Resource], bool]] = {
    "vo": lambda asked, resource: _named_condition(asked.vo, resource.vos),
    "cpu_time": _has("cpu_time"),
    "site": _site,
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
