"""Rules of matching that take more than a line of the table (`matcher.conditions`), and that for owners.

They select among requirement classes (`Items`), of which there may be one or thousands.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from requirements import images
from requirements.column_index import Items, SingleItem, Values
from requirements.diracx import tag_expression
from requirements.diracx.cpu_levels import LEVELS, list_features
from requirements.diracx.specification import GPU_VENDORS, OPPORTUNISTIC
from requirements.diracx.tag_expression import Term
from requirements.kept import keep
from requirements.requirement_class import RequirementClass
from requirements.resource import Exclusion, Resource
from requirements.values import fold


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
    single = SingleItem(asked, NAMES)
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


#: Resources of any size, for numbers that are not stated.
_UNLIMITED: Final = 2**53


class CoreRange(NamedTuple):
    """What decides how many cores a job is given; few classes differ in it."""

    processors_min: int
    processors_max: int | None
    min_ram: int  #: 0, if each core needs no memory of its own
    min_ram_per_core: int


def _find_core_range(asked: RequirementClass) -> CoreRange:
    ram = asked.min_ram if asked.min_ram_per_core else 0
    return CoreRange(asked.processors_min, asked.processors_max, ram, asked.min_ram_per_core)


def most_cores(asked: CoreRange, has: Resource) -> int:
    """The cores that a job is given if it has the resource for itself: all that its memory allows.

    Source: the match-making specification of DiracX, greedy to the budget.
    """
    cores = asked.processors_min if has.processors is None else has.processors
    if asked.processors_max is not None:
        cores = min(cores, asked.processors_max)
    if asked.min_ram_per_core and has.max_ram is not None:
        cores = min(cores, int(has.max_ram - asked.min_ram) // asked.min_ram_per_core)
    return cores


def needed_cores(asked: RequirementClass, has: Resource) -> int:
    """The cores that a job needs at least, to be done in the time left."""
    work = asked.cpu_work_db12
    if work > _UNLIMITED * has.work_per_core:
        return _UNLIMITED
    cores = math.ceil(work / has.work_per_core) if work else 0
    if (cores - 1) * has.work_per_core >= work:  # rounded up where `select_by_work` is not
        cores -= 1
    return max(asked.processors_min, cores)


def fold_names(names: Collection[str]) -> frozenset[str]:
    """Names folded for comparison."""
    if isinstance(names, frozenset):
        return _fold_list(names)
    return frozenset(map(fold, names))


def _measure_names(_: object, names: frozenset[str]) -> int:
    return 300 * len(names) + 2 * sum(map(len, names))


@keep(64, _measure_names)
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


@keep(64, _measure_names)
def sort_tags(tags: frozenset[str]) -> SortedTags:
    """Sort tags, cached; tags for cores and whole nodes are handled together with the keywords for these."""
    whole = frozenset(tag for tag in tags if fold(tag) == "wholenode")
    cores = frozenset(filter(is_core_tag, tags))
    return SortedTags(plain=tags - whole - cores, cores=cores, whole_node=whole)


def is_core_tag(tag: str) -> bool:
    """Whether a tag requests cores."""
    folded = fold(tag)
    return folded == "multiprocessor" or (
        folded.endswith("processors") and folded.removesuffix("processors").isdecimal()
    )


def select_by_site(classes: Items, has: Resource) -> int:
    """One of the resource's sites is both wanted and not banned."""
    found = classes.everything if has.sites is None else 0
    for site in has.sites or ():
        found |= classes.accepting("sites", {site}) & classes.avoiding("banned_sites", {site})
    return found


def select_by_work(classes: Items, has: Resource) -> int:
    """The cores that the class is given do its CPU work in the time left."""
    found = classes.free("core_ranges")
    # The time left differs in each request of a node, unlike the cores that it gives.
    given = classes.once(("cores", has.processors, has.max_ram), lambda: _sort_by_cores(classes, has))
    for cores, sized in given:
        found |= sized & classes.needing("cpu_work", cores * has.work_per_core)
    return found


def _sort_by_cores(classes: Items, has: Resource) -> list[tuple[int, int]]:
    """The classes that are given enough cores, by their number; only memory and cores decide it."""
    by_cores = defaultdict[int, list[CoreRange]](list)
    for size in classes.names("core_ranges"):
        if (cores := most_cores(size, has)) >= size.processors_min:
            by_cores[cores].append(size)
    return [(cores, classes.naming("core_ranges", sizes)) for cores, sizes in by_cores.items()]


def select_by_architecture(classes: Items, has: Resource) -> int:
    """The class names the resource's architecture, one that has levels."""
    known = None if has.architecture is None else {has.architecture} & LEVELS.keys()
    return classes.accepting("architectures", known)


def select_by_gpus(classes: Items, has: Resource) -> int:
    """The resource has no more GPUs than the class allows, and only with consent of both it has idle ones."""
    tags = has.literal_tags
    is_open = tags is None or OPPORTUNISTIC in tags
    unfit = [
        (least, most, consents)
        for least, most, consents in classes.names("gpu_ranges")
        if has.gpus > most or (has.gpus and not least and not (consents and is_open))
    ]
    return classes.avoiding("gpu_ranges", unfit)


def select_by_gpu_vendor(classes: Items, has: Resource) -> int:
    """The class names the vendor of the resource's GPUs, one whose GPUs can be compared."""
    known = None if has.gpu_vendor is None else {has.gpu_vendor}.intersection(GPU_VENDORS)
    return classes.accepting("gpu_vendors", known)


def select_by_tag_expression(classes: Items, has: Resource) -> int:
    """The class's expression is true of the resource's tags, or may be with those that its nodes have."""
    tags, open_tags = has.literal_tags, has.open_tags
    if tags is None:
        return classes.everything

    def select() -> int:
        unfit = [each for each in classes.names("tag_expressions") if not may_hold(each, tags, open_tags)]
        return classes.avoiding("tag_expressions", unfit)

    # The nodes of a site have the same tags.
    return classes.once(("tag_expressions", tags, open_tags), select)


def select_by_image(classes: Items, has: Resource) -> int:
    """The resource states the tags of nodes that start the class's image, or its nodes may have them."""
    tags, open_tags = has.literal_tags or frozenset[str](), has.open_tags
    missing = [
        each for each in classes.names("image_tags") if each not in tags and not each.startswith(open_tags)
    ]
    return classes.avoiding("image_tags", missing)


def may_hold(term: Term, tags: Collection[str], open_tags: tuple[str, ...]) -> bool:
    """Whether an expression is true of these tags, or may be with those of the open prefixes."""
    if not open_tags:
        return tag_expression.holds(term, tags)
    return tag_expression.may_hold(term, tags, lambda tag: tag.startswith(open_tags))


def _find_gpu_range(asked: RequirementClass) -> Collection[tuple[int, int, bool]]:
    """GPUs at least and at most, and whether the job names the tag of pilots whose GPUs may be idle."""
    if asked.gpus_max is None:
        return ()
    consents = bool(asked.tag_expression) and OPPORTUNISTIC in tag_expression.list_tags(asked.tag_expression)
    return ((asked.gpus, asked.gpus_max, consents),)


def select_by_input_data(classes: Items, has: Resource) -> int:
    """Each input file has a replica near the resource."""
    near = has.near
    if near is None:
        return classes.everything
    return classes.avoiding("replicas", [each for each in classes.names("replicas") if near.isdisjoint(each)])


def select_by_job_type(classes: Items, has: Resource) -> int:
    """A resource that names no type accepts all types but those that only job managers handle."""
    found, others = classes.accepting("job_types", has.job_types), classes.everything
    of_other_vos_last = sorted(has.managed_types, key=lambda each: each[0] is None)
    for vo, types in of_other_vos_last if has.job_types is None else ():
        of_vo = others if vo is None else classes.naming("vo", (vo,))
        found &= ~(of_vo & classes.naming("job_types", types))
        others &= ~of_vo
    return found


def select_by_required_tags(classes: Items, has: Resource) -> int:
    """The class has all tags that the resource requires."""
    found = classes.everything
    for tag in has.required_tags:
        found &= classes.naming("tags", (tag,))
    return found


def select_not_banned(classes: Items, has: Resource) -> int:
    """The class names nothing that the resource bans."""
    found = classes.everything
    for name, banned in has.banned.items():
        found &= classes.avoiding(name, banned)
    return found


def select_not_excluded(classes: Items, has: Resource) -> int:
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


def _list_name(name: str) -> Collection[str]:
    return (fold(name),) if name else ()


_OWNERS = frozenset({"owners", "owner_groups"})
#: What the conditions read of a class by name; folded.
NAMES: Final[Mapping[str, Values[RequirementClass]]] = {
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
    "core_ranges": lambda asked: (_find_core_range(asked),) if asked.cpu_work_db12 else (),
    "cpu_work": lambda asked: (asked.cpu_work_db12,),
    "systems": lambda asked: _list_name(asked.system),
    "architectures": lambda asked: _list_name(asked.architecture),
    "cpu_features": lambda asked: list_features(asked.cpu_level, asked.cpu_features),
    "gpu_ranges": _find_gpu_range,
    "gpu_vendors": lambda asked: _list_name(asked.gpu_vendor),
    "tag_expressions": lambda asked: (
        (tag_expression.parse(asked.tag_expression),) if asked.tag_expression else ()
    ),
    "image_tags": lambda asked: images.list_tags(asked.image),
    "submit_pool": lambda asked: () if asked.submit_pool is None else (asked.submit_pool,),
}
