"""When a job and a resource fit: one condition a row. This is the specification of matching.

Check, index, explanation, suggested changes and documentation follow from the rows. A row selects among
requirement classes (`Items`): of a single class that is the check, of all classes with waiting jobs the
index. A value that the resource does not state, or the class does not demand, is no condition.
Source: DIRAC TaskQueueDB, with two errors corrected: one of several sites must be both wanted and not banned,
and any banned value excludes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal

from matcher import remedies, rules
from matcher.remedies import RefusingQueue, Remedy
from requirements import images
from requirements.column_index import Items, SingleItem, Values
from requirements.diracx.specification import OPPORTUNISTIC, architecture_number, version_number
from requirements.quantities import QUANTITIES, SlotQuantity
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.values import format_value

#: The values of a demand's fields.
DemandValues = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeywordDemand:
    """What a job demands with one keyword, as people see it."""

    keyword: str
    fields: tuple[str, ...]  #: of `RequirementClass`; a class with no other has this demand alone
    #: The demands of a class, by the values of the fields; None: one, if it has a value in the last field.
    split: Callable[[RequirementClass], Iterable[DemandValues]] | None = None
    wanted: str | Callable[[RequirementClass], str] = "{names}"  #: a format of `{asked}` and `{names}`
    #: What a queue must do, with `{names}` or the needed `{number}`; None: no change of a queue helps.
    change: str | None = None
    remedy: Remedy = remedies.do_nothing  #: what the job may state instead
    shows: Literal["site", "ce"] | None = None  #: the part of its address by which a queue fails it
    #: The value by which a queue fails it; None: the needed capacity, or the parameter of this name.
    read_value: Callable[[RefusingQueue], str | None] | None = None

    def list_values(self, asked: RequirementClass) -> Iterable[DemandValues]:
        """The demands of a class; it fulfils the condition where each of them is fulfilled."""
        if self.split is not None:
            return self.split(asked)
        values = tuple(getattr(asked, name) for name in self.fields)
        return [values] if values[-1] else ()

    def isolate(self, values: DemandValues) -> RequirementClass:
        """A class with one demand."""
        fields: dict[str, Any] = {"vo": "", "cpu_time": 0}
        return RequirementClass(**fields | dict(zip(self.fields, values, strict=True)))

    def format_names(self, asked: RequirementClass) -> str:
        """The demanded names."""
        return ", ".join(sorted(getattr(asked, self.fields[-1])))

    def format_wanted(self, asked: RequirementClass) -> str:
        """The demanded value."""
        if not isinstance(self.wanted, str):
            return self.wanted(asked)
        names = self.format_names(asked) if "{names}" in self.wanted else ""
        return self.wanted.format(asked=asked, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition between requirement classes and a resource; `need` or `holds` may be absent."""

    name: str
    meaning: str  #: for the documentation: what holds for a resource that runs the job
    need: Callable[[RequirementClass], int] | None = None  #: must not be larger than `capacity`
    capacity: str = ""  #: attribute of `Resource`; None there: not stated
    #: Field of `Allotment`, where jobs that run side by side share the capacity.
    allotted: str = ""
    holds: Callable[[Items, Resource], int] | None = None  #: selects the classes that fulfil the rest
    reads: tuple[str, ...] = ()  #: attributes of `Resource` that `holds` reads
    varies: bool = False  #: whether they change from request to request
    shared: bool = False  #: jobs side by side share the capacity, which is no field of `Allotment`
    parameters: tuple[str, ...] = ()  #: of a queue, from which its pilots' offer is computed
    demands: tuple[KeywordDemand, ...] = ()  #: none: jobs do not state it

    def select(self, classes: Items, resource: Resource) -> int:
        """The classes that fulfil it."""
        found = self.select_by_need(classes, resource)
        return found if self.holds is None else found & self.holds(classes, resource)

    def describe(self, asked: RequirementClass) -> str:
        """What of it a class demands, as people see it."""
        for demand in self.demands:
            for values in demand.list_values(asked):
                return f"{demand.keyword} ({demand.format_wanted(demand.isolate(values))})"
        return self.name

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


def _list_plain_tags(asked: RequirementClass) -> Iterable[DemandValues]:
    return ((frozenset({tag}),) for tag in sorted(rules.sort_tags(asked.tags).plain))


def _list_ram(asked: RequirementClass) -> Iterable[DemandValues]:
    if rules.needed_ram(asked):
        yield asked.min_ram, asked.min_ram_per_core, asked.processors_min


def _list_processors(asked: RequirementClass) -> Iterable[DemandValues]:
    tags = rules.sort_tags(asked.tags).cores
    if asked.processors_min > 1 or tags:
        yield asked.processors_min, tags


def _list_whole_node(asked: RequirementClass) -> Iterable[DemandValues]:
    tags = rules.sort_tags(asked.tags).whole_node
    if asked.whole_node or tags:
        yield asked.whole_node, tags


def _format_ram(asked: RequirementClass) -> str:
    needed = f"at least {rules.needed_ram(asked)} MB"
    if not asked.min_ram_per_core:
        return needed
    each = f"{asked.min_ram_per_core} for each of {asked.processors_min} processors"
    return f"{needed} ({asked.min_ram} and {each})" if asked.min_ram else f"{needed} ({each})"


def _format_replicas(asked: RequirementClass) -> str:
    listed = sorted(", ".join(sorted(places)) for places in asked.replicas)
    more = f" and near {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"a site near {' and near '.join(listed[:3])}{more}"


def _format_image(asked: RequirementClass) -> str:
    return f"needs apptainer: {', '.join(sorted(images.list_tags(asked.image), reverse=True))}"


def _format_no_other_tag(asked: RequirementClass) -> str:
    return f"no other tag than {', '.join(sorted(asked.tags))}" if asked.tags else "no tag at all"


def _list_gpu_range(asked: RequirementClass) -> Iterable[DemandValues]:
    if asked.gpus_max is not None:
        yield asked.tag_expression, asked.gpus, asked.gpus_max


def _format_gpu_range(asked: RequirementClass) -> str:
    if not asked.gpus_max:
        return "none: the job requires no GPU"
    consent = "" if asked.gpus else f"; and where there are any, the tag {OPPORTUNISTIC} of both"
    return f"at most {asked.gpus_max}{consent}"


def _read_texts(parameter: str) -> Callable[[RefusingQueue], str | None]:
    """What a queue states under a name, as it is written."""
    return lambda queue: ", ".join(queue.list_texts(parameter)) or None


def _require_floor(
    *, name: str, keyword: str, unit: str, meaning: str, parameter: str, **more: Any
) -> Condition:
    """A number under one name, of which a resource must have as much."""
    return Condition(
        name=name,
        meaning=meaning,
        need=more.pop("need", attrgetter(name)),
        capacity=more.pop("capacity", name),
        parameters=(parameter,),
        demands=(
            KeywordDemand(
                keyword=keyword,
                fields=(name,),
                wanted=f"at least {{asked.{name}}}{unit}",
                change=more.pop("change", f"offer {parameter} {{number}}{unit}"),
                remedy=more.pop("remedy", remedies.lower_number(name)),
                read_value=more.pop("read_value", None),
            ),
        ),
        **more,
    )


def _require_quantity(quantity: SlotQuantity) -> Condition:
    name, keyword = quantity.name, quantity.keyword
    return Condition(
        name=name,
        meaning=f"it has as many {keyword}",
        need=attrgetter(name),
        capacity=name,
        allotted=name,
        parameters=quantity.parameters,
        demands=(
            KeywordDemand(
                keyword=keyword,
                fields=(name,),
                wanted=f"at least {{asked.{name}}}",
                change=f"offer {keyword} {{number}}",
                remedy=remedies.lower_number(name),
            ),
        ),
    )


#: The conditions, in the order in which people check them.
CONDITIONS: Final[tuple[Condition, ...]] = (
    Condition(
        name="vo",
        meaning="the pilot serves the job's VO",
        holds=lambda classes, has: classes.accepting("vo", has.vos),
        reads=("vos",),
    ),
    Condition(
        name="cpu_time",
        meaning="it has as many normalised CPU seconds left",
        need=lambda asked: asked.cpu_time,
        capacity="cpu_time",
        parameters=("CPUTime", "maxCPUTime", "maxWallClockTime", "CPUNormalizationFactor", "SI00"),
        demands=(
            KeywordDemand(
                keyword="CPUTime",
                fields=("cpu_time",),
                wanted="at least {asked.cpu_time} s",
                change="offer CPUTime {number} s",
                remedy=remedies.lower_cpu_time,
            ),
        ),
    ),
    Condition(
        name="site",
        meaning="its site is one that the job names, if it names any, and none that it bans",
        holds=rules.select_by_site,
        reads=("sites",),
        demands=(
            KeywordDemand(keyword="Site", fields=("sites",), remedy=remedies.name_other_sites, shows="site"),
            KeywordDemand(
                keyword="BannedSites",
                fields=("banned_sites",),
                wanted="none of {names}",
                remedy=remedies.lift_site_bans,
                shows="site",
            ),
        ),
    ),
    Condition(
        name="grid_ce",
        meaning="its CE is one that the job names, if it names any",
        holds=lambda classes, has: classes.accepting("grid_ces", has.grid_ces),
        reads=("grid_ces",),
        demands=(
            KeywordDemand(
                keyword="GridCE",
                fields=("grid_ces",),
                remedy=remedies.name_others("grid_ces", lambda queue: [queue.ce]),
                shows="ce",
            ),
        ),
    ),
    Condition(
        name="platform",
        meaning="it runs the software of a platform that the job names, if both name any",
        holds=lambda classes, has: classes.accepting("platforms", has.platforms),
        reads=("platforms",),
        parameters=("Platform",),
        demands=(
            KeywordDemand(
                keyword="Platform",
                fields=("platforms",),
                change="offer the Platform {names}",
                remedy=remedies.name_others("platforms", lambda queue: queue.list_texts("Platform")),
            ),
        ),
    ),
    Condition(
        name="input_data",
        meaning="each input file has a replica at its site, or at a storage element near it",
        holds=rules.select_by_input_data,
        reads=("near",),
        parameters=("SE",),
        demands=(
            KeywordDemand(keyword="InputData", fields=("replicas",), wanted=_format_replicas, shows="site"),
        ),
    ),
    Condition(
        name="job_type",
        meaning="it names the job's type, or none and no job manager handles the type",
        holds=rules.select_by_job_type,
        reads=("managed_types", "job_types"),
        demands=(
            KeywordDemand(
                keyword="JobType",
                fields=("vo", "job_types"),
                wanted="{names}, which job managers handle: a resource that names it",
                change="have a job manager for the JobType {names}",
            ),
        ),
    ),
    Condition(
        name="tag",
        meaning="it offers each tag of the job",
        holds=lambda classes, has: classes.content_with("plain_tags", has.tags),
        reads=("tags",),
        parameters=("Tag",),
        demands=(
            KeywordDemand(
                keyword="Tags",
                fields=("tags",),
                split=_list_plain_tags,
                change="offer the Tag {names}",
                remedy=remedies.leave_out_tag,
            ),
        ),
    ),
    Condition(
        name="required_tag",
        meaning="the job has each tag that the resource requires of jobs",
        holds=rules.select_by_required_tags,
        reads=("required_tags",),
        parameters=("RequiredTag",),
        demands=(
            KeywordDemand(
                keyword="RequiredTag",
                fields=("tags",),
                split=lambda asked: [(asked.tags,)],
                wanted=_format_no_other_tag,
                change="require no Tag (RequiredTag)",
                remedy=remedies.add_required_tag,
            ),
        ),
    ),
    Condition(
        name="banned",
        meaning="the pilot bans nothing that the job names (`BannedSite`, `BannedTag` and so on)",
        holds=rules.select_not_banned,
        reads=("banned_sites", "banned_grid_ces", "banned_platforms", "banned_job_types", "banned_tags"),
    ),
    Condition(
        name="ram",
        meaning="it has as much memory, with the part for each core",
        need=rules.needed_ram,
        capacity="max_ram",
        allotted="ram_mb",
        parameters=("MaxRAM", "MaxRAMPerCore"),
        demands=(
            KeywordDemand(
                keyword="MinRAM",
                fields=("min_ram", "min_ram_per_core", "processors_min"),
                split=_list_ram,
                wanted=_format_ram,
                change="offer MaxRAM {number} MB",
                remedy=remedies.lower_ram,
            ),
        ),
    ),
    Condition(
        name="processors",
        meaning="it has as many processors, and offers the tags that require several",
        need=lambda asked: asked.processors_min,
        capacity="processors",
        allotted="processors",
        holds=lambda classes, has: classes.content_with("core_tags", has.tags),
        reads=("tags",),
        parameters=("NumberOfProcessors", "Tag"),
        demands=(
            KeywordDemand(
                keyword="NumberOfProcessors",
                fields=("processors_min", "tags"),
                split=_list_processors,
                wanted=lambda asked: f"at least {max(asked.processors_min, 2 if asked.tags else 1)}",
                change="offer NumberOfProcessors {number}",
                remedy=remedies.lower_processors,
            ),
        ),
    ),
    *map(_require_quantity, QUANTITIES),
    Condition(
        name="whole_node",
        meaning="it offers whole nodes, or the tag `WholeNode`",
        need=lambda asked: asked.whole_node,
        capacity="offers_whole_node",
        holds=lambda classes, has: classes.content_with("whole_node_tags", has.tags),
        reads=("tags",),
        parameters=("WholeNode", "Tag"),
        demands=(
            KeywordDemand(
                keyword="WholeNode",
                fields=("whole_node", "tags"),
                split=_list_whole_node,
                wanted="a node of its own",
                change="offer WholeNode: true",
                remedy=remedies.do_without_whole_node,
            ),
        ),
    ),
    _require_floor(
        name="wall_time",
        keyword="WallTime",
        unit=" s",
        meaning="it has as much wall time left",
        parameter="maxWallClockTime",
    ),
    Condition(
        name="cpu_work",
        meaning="the cores that the job is given there do its CPU work in the time left",
        holds=rules.select_by_work,
        reads=("wall_time", "cpu_power_db12", "cpu_time", "processors", "max_ram"),
        varies=True,
        parameters=(
            *("maxWallClockTime", "CPUPowerDB12", "CPUNormalizationFactor"),
            *("NumberOfProcessors", "MaxRAM"),
        ),
        demands=(
            KeywordDemand(
                keyword="CPUWorkDB12",
                fields=("processors_min", "processors_max", "min_ram", "min_ram_per_core", "cpu_work_db12"),
                wanted="{asked.cpu_work_db12} DB12 seconds by all cores together",
            ),
        ),
    ),
    _require_floor(
        name="scratch_mb",
        keyword="MinScratch",
        unit=" MB",
        meaning="it has as much local disk",
        parameter="MaxScratch",
        shared=True,
    ),
    Condition(
        name="system",
        meaning="it runs the job's family of operating systems",
        holds=lambda classes, has: classes.accepting("systems", None if has.system is None else {has.system}),
        reads=("system",),
        demands=(KeywordDemand(keyword="System", fields=("system",), wanted="{asked.system}"),),
    ),
    Condition(
        name="architecture",
        meaning="its processors are of the job's architecture, x86_64 or aarch64",
        holds=rules.select_by_architecture,
        reads=("architecture",),
        parameters=("Architecture",),
        demands=(
            KeywordDemand(
                keyword="Architecture",
                fields=("architecture",),
                wanted="{asked.architecture}",
                change="offer the Architecture of its nodes",
            ),
        ),
    ),
    Condition(
        name="cpu_features",
        meaning="its processors have the features of the job's level or profile, and those that it lists",
        holds=lambda classes, has: classes.content_with("cpu_features", has.cpu_features),
        reads=("cpu_features",),
        demands=(
            KeywordDemand(keyword="CPULevel", fields=("cpu_level",), wanted="{asked.cpu_level}"),
            KeywordDemand(keyword="CPUFeatures", fields=("cpu_features",)),
        ),
    ),
    Condition(
        name="gpu_range",
        meaning="it has no more GPUs than the job allows; if the job leaves some idle, both state"
        f" the tag `{OPPORTUNISTIC}`",
        holds=rules.select_by_gpus,
        reads=("gpus", "literal_tags"),
        parameters=("GPUs", "NumberOfGPUs", "Tag"),
        demands=(
            KeywordDemand(
                keyword="MaxGPUs",
                fields=("tag_expression", "gpus", "gpus_max"),
                split=_list_gpu_range,
                wanted=_format_gpu_range,
                change=f"offer the Tag {OPPORTUNISTIC}, for jobs that name it and require no GPU",
                remedy=remedies.consent_to_gpus,
                read_value=lambda queue: format_value(queue.offered.gpus or 0),
            ),
        ),
    ),
    Condition(
        name="gpu_vendor",
        meaning="its GPUs are of the job's vendor",
        holds=rules.select_by_gpu_vendor,
        reads=("gpu_vendor",),
        parameters=("GPUVendor",),
        demands=(KeywordDemand(keyword="GPUVendor", fields=("gpu_vendor",), wanted="{asked.gpu_vendor}"),),
    ),
    _require_floor(
        name="gpu_architecture",
        keyword="GPUArchitecture",
        unit="",
        meaning="its GPUs are of that architecture or a later one",
        parameter="GPUArchitecture",
        need=lambda asked: architecture_number(asked.gpu_architecture),
        change=None,
        remedy=remedies.lower_text("gpu_architecture", "GPUArchitecture"),
        read_value=_read_texts("GPUArchitecture"),
    ),
    _require_floor(
        name="gpu_memory_mb",
        keyword="GPUMemory",
        unit=" MB",
        meaning="each of its GPUs has as much memory",
        parameter="GPUMemory",
    ),
    _require_floor(
        name="gpu_runtime",
        keyword="GPURuntime",
        unit="",
        meaning="the runtime of its GPUs is that version or a later one",
        parameter="GPURuntime",
        need=lambda asked: version_number(asked.gpu_runtime),
        change=None,
        remedy=remedies.lower_text("gpu_runtime", "GPURuntime"),
        read_value=_read_texts("GPURuntime"),
    ),
    Condition(
        name="tag_expression",
        meaning="the job's expression over tags is true of its tags",
        holds=rules.select_by_tag_expression,
        reads=("literal_tags", "open_tags"),
        parameters=("Tag",),
        demands=(
            KeywordDemand(
                keyword="TagExpression",
                fields=("tag_expression",),
                wanted="{asked.tag_expression}",
                remedy=remedies.shorten_tag_expression,
                read_value=_read_texts("Tag"),
            ),
        ),
    ),
    Condition(
        name="image",
        meaning="it has apptainer, and the CVMFS repository of the job's image, or allows remote ones",
        holds=rules.select_by_image,
        reads=("literal_tags", "open_tags"),
        parameters=("Tag",),
        demands=(
            KeywordDemand(
                keyword="Image",
                fields=("image",),
                wanted=_format_image,
                change="state these, or no Tag of the kinds that nodes measure (hostfeat:, cvmfs:)",
                remedy=remedies.leave_out_image,
                read_value=_read_texts("Tag"),
            ),
        ),
    ),
    Condition(
        name="limits",
        meaning="no limit of the place excludes such jobs now",
        holds=rules.select_not_excluded,
        reads=("excluded",),
    ),
)
BY_NAME: Final = {each.name: each for each in CONDITIONS}
#: The number that a class needs, by condition.
NEEDS: Final = {each.name: each.need for each in CONDITIONS if each.need is not None}


def capacities(resource: Resource) -> Mapping[str, float | None]:
    """The resource's capacity for each of `NEEDS`; None: not stated."""
    return {each.name: getattr(resource, each.capacity) for each in CONDITIONS if each.need is not None}


def _read_number(need: Callable[[RequirementClass], int]) -> Values[RequirementClass]:
    return lambda asked: (need(asked),)


#: What the conditions read of a class: names, folded, and the numbers that it needs.
COLUMNS: Final[Mapping[str, Values[RequirementClass]]] = {
    **rules.NAMES,
    **{name: _read_number(need) for name, need in NEEDS.items()},
}
