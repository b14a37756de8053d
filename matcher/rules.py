"""When a job and a resource fit: one condition a row. This is the specification.

A row is written for sets of requirement classes (`Items`). Evaluated for a single class it is the check, for
the index over all classes with waiting jobs the selection. A value that the resource does not state, or the
class does not demand, is no condition. Source: DIRAC TaskQueueDB, with two errors corrected: one of several
sites must be both wanted and not banned, and any banned value excludes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from requirements.column_index import Items, SingleItem, Values
from requirements.requirement_class import RequirementClass
from requirements.resource import Exclusion, Resource
from requirements.values import fold

#: Selects the classes that fulfil a condition.
Rule = Callable[[Items, Resource], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition between requirement classes and a resource; `need` or `holds` may be absent."""

    name: str
    need: Callable[[RequirementClass], float] | None = None  #: must not be larger than `capacity`
    capacity: str = ""  #: attribute of `Resource`; None there: not stated
    holds: Rule | None = None
    reads: tuple[str, ...] = ()  #: attributes of `Resource` that `holds` reads

    def select(self, classes: Items, resource: Resource) -> int:
        """The classes that fulfil it."""
        found = self.select_by_need(classes, resource)
        return found if self.holds is None else found & self.holds(classes, resource)

    def select_by_need(self, classes: Items, resource: Resource) -> int:
        """The classes that need no more than the resource has."""
        capacity = getattr(resource, self.capacity) if self.need else None
        return classes.everything if capacity is None else classes.needing(self.name, capacity)


def refusals(asked: RequirementClass, resource: Resource, pools: Collection[str]) -> tuple[str, ...]:
    """The names of all conditions that the resource and class fail; empty: the resource may run such jobs.

    `pools` are the submit pools that may run at the resource's place.
    """
    single = SingleItem(asked, COLUMNS)
    refused = [each.name for each in CONDITIONS if not each.select(single, resource)]
    return (*refused, *(() if single.accepting("submit_pool", pools) else ("submit_pool",)))


def fits(asked: RequirementClass, resource: Resource) -> bool:
    """Whether the resource may run jobs of this class, apart from pools."""
    single = SingleItem(asked, COLUMNS)
    return all(each.select(single, resource) for each in CONDITIONS)


def owner_fits(asked: RequirementClass, owner: str, owner_group: str, resource: Resource) -> bool:
    """Whether the resource accepts jobs of this class with this owner and group.

    A resource for one owner of a group that shares its jobs also accepts those of the group's other members.
    """
    if not _accepts(owner_group, resource.owner_groups):
        return False
    shares = resource.owner_groups is not None and fold(owner_group) in resource.sharing_groups
    if not shares and not _accepts(owner, resource.owners):
        return False
    own = {"owners": fold(owner), "owner_groups": fold(owner_group)}
    single = SingleItem(asked, COLUMNS)
    return not any(
        all(own[name] in values if name in own else single.naming(name, values) for name, values in each)
        for each in resource.excluded
        if concerns_owners(each)
    )


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


def _accepts(name: str, wanted: frozenset[str] | None) -> bool:
    return wanted is None or fold(name) in wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedTags:
    """Tags of a class by what they require."""

    plain: frozenset[str]
    cores: frozenset[str]  #: such as `8Processors` and `MultiProcessor`
    whole_node: frozenset[str]


@lru_cache(maxsize=50_000)
def sort_tags(tags: frozenset[str]) -> SortedTags:
    """Sort tags; tags for cores and whole nodes are handled together with the keywords for these."""
    whole = frozenset(tag for tag in tags if fold(tag) == "wholenode")
    cores = frozenset(filter(is_core_tag, tags))
    return SortedTags(plain=tags - whole - cores, cores=cores, whole_node=whole)


def is_core_tag(tag: str) -> bool:
    """Whether a tag requests cores."""
    folded = fold(tag)
    return folded == "multiprocessor" or (
        folded.endswith("processors") and folded.removesuffix("processors").isdecimal()
    )


def _site(classes: Items, has: Resource) -> int:
    """One of the resource's sites is both wanted and not banned."""
    found = classes.everything if has.sites is None else 0
    for site in has.sites or ():
        found |= classes.accepting("sites", {site}) & classes.avoiding("banned_sites", {site})
    return found


def _input_data(classes: Items, has: Resource) -> int:
    """Each input file has a replica near the resource."""
    near = has.near
    if near is None:
        return classes.everything
    return classes.avoiding("replicas", [each for each in classes.names("replicas") if near.isdisjoint(each)])


def _job_type(classes: Items, has: Resource) -> int:
    """A resource that names no type accepts all types but those that only job managers handle."""
    found, others = classes.accepting("job_types", has.job_types), classes.everything
    for vo, types in sorted(has.managed_types, reverse=True) if has.job_types is None else ():
        of_vo = classes.naming("vo", (vo,)) if vo else others  # "", all other VOs, comes last
        found &= ~(of_vo & classes.naming("job_types", types))
        others &= ~of_vo
    return found


def _required_tag(classes: Items, has: Resource) -> int:
    found = classes.everything
    for tag in has.required_tags:
        found &= classes.naming("tags", (tag,))
    return found


def _not_banned(classes: Items, has: Resource) -> int:
    found = classes.everything
    for name, banned in has.banned.items():
        found &= classes.avoiding(name, banned)
    return found


def _not_excluded(classes: Items, has: Resource) -> int:
    """No limit excludes it that reads no owner; the others are applied per task queue (`owner_fits`)."""
    found = classes.everything
    for each in has.excluded:
        if not concerns_owners(each):
            found &= ~_names_all(classes, each)
    return found


def _names_all(classes: Items, exclusion: Exclusion) -> int:
    """The classes that name one of the values in every field of an exclusion."""
    found = classes.everything
    for name, values in exclusion:
        found &= classes.naming(name, values)
    return found


_OWNERS = frozenset({"owners", "owner_groups"})

#: The conditions, in the order in which people check them.
CONDITIONS: Final[tuple[Condition, ...]] = (
    Condition(name="vo", holds=lambda classes, has: classes.accepting("vo", has.vos), reads=("vos",)),
    Condition(name="cpu_time", need=lambda asked: asked.cpu_time, capacity="cpu_time"),
    Condition(name="site", holds=_site, reads=("sites",)),
    Condition(name="input_data", holds=_input_data, reads=("near",)),
    Condition(
        name="grid_ce",
        holds=lambda classes, has: classes.accepting("grid_ces", has.grid_ces),
        reads=("grid_ces",),
    ),
    Condition(
        name="platform",
        holds=lambda classes, has: classes.accepting("platforms", has.platforms),
        reads=("platforms",),
    ),
    Condition(name="job_type", holds=_job_type, reads=("managed_types", "job_types")),
    Condition(
        name="tag", holds=lambda classes, has: classes.content_with("plain_tags", has.tags), reads=("tags",)
    ),
    Condition(name="required_tag", holds=_required_tag, reads=("required_tags",)),
    Condition(
        name="banned",
        holds=_not_banned,
        reads=("banned_sites", "banned_grid_ces", "banned_platforms", "banned_job_types", "banned_tags"),
    ),
    Condition(name="ram", need=needed_ram, capacity="max_ram"),
    Condition(
        name="processors",
        need=lambda asked: asked.processors_min,
        capacity="processors",
        holds=lambda classes, has: classes.content_with("core_tags", has.tags),
        reads=("tags",),
    ),
    Condition(name="gpus", need=lambda asked: asked.gpus, capacity="gpus"),
    Condition(
        name="whole_node",
        need=lambda asked: asked.whole_node,
        capacity="offers_whole_node",
        holds=lambda classes, has: classes.content_with("whole_node_tags", has.tags),
        reads=("tags",),
    ),
    Condition(name="limits", holds=_not_excluded, reads=("excluded",)),
)
BY_NAME: Final = {each.name: each for each in CONDITIONS}
#: The number that a class needs, by condition.
NEEDS: Final = {each.name: each.need for each in CONDITIONS if each.need is not None}


def capacities(resource: Resource) -> Mapping[str, float | None]:
    """The resource's capacity for each of `NEEDS`; None: not stated."""
    return {each.name: getattr(resource, each.capacity) for each in CONDITIONS if each.need is not None}


def _number(need: Callable[[RequirementClass], float]) -> Values[RequirementClass]:
    return lambda asked: (need(asked),)


#: What the conditions read of a class: names, folded, and the numbers that it needs.
COLUMNS: Final[Mapping[str, Values[RequirementClass]]] = {
    **{name: _number(need) for name, need in NEEDS.items()},
    "vo": lambda asked: (fold(asked.vo),),
    "sites": lambda asked: fold_names(asked.sites),
    "banned_sites": lambda asked: fold_names(asked.banned_sites),
    "replicas": lambda asked: frozenset(map(fold_names, asked.replicas)),
    "grid_ces": lambda asked: fold_names(asked.grid_ces),
    "platforms": lambda asked: fold_names(asked.platforms),
    "job_types": lambda asked: fold_names(asked.job_types),
    "tags": lambda asked: fold_names(asked.tags),
    "plain_tags": lambda asked: fold_names(sort_tags(asked.tags).plain),
    "core_tags": lambda asked: fold_names(sort_tags(asked.tags).cores),
    "whole_node_tags": lambda asked: fold_names(sort_tags(asked.tags).whole_node),
    "submit_pool": lambda asked: () if asked.submit_pool is None else (asked.submit_pool,),
}
