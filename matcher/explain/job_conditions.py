"""A job's demand, split into conditions that can be checked separately, and the queue parameters each reads.

Each condition is evaluated by the evaluator or by `matcher.rules`; this module only names the fields. A
property test holds all conditions together equal to `rules.refusals`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from cs_config.tree import admission, glue
from matcher import rules
from matcher.request.resource import Resource
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.record.declarations import Declarations
from requirements.values import Value, fold
from taskqueue.task_queues.requirement_class import RequirementClass

#: Tags that request cores; they are handled together with NumberOfProcessors.
_CORES = "processors"
_SEVERAL_CORES = "multiprocessor"
_WHOLE = "wholenode"


#: The fields of a class without demands.
_NOTHING = {"vo": "", "cpu_time": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    """Everything that a job demands of its queue."""

    asked: RequirementClass
    requirements: Requirements | None = None
    #: The job's attributes by folded names, for queues that check jobs; None: no queue checks them.
    job: Mapping[str, Value] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionKind:
    """A kind of task queue condition, and the fields of class and resource that it reads."""

    requirement: str  #: keyword shown to users
    rules: tuple[rules.Condition, ...]  #: conditions of `matcher.rules`
    class_fields: tuple[str, ...]  #: fields of `RequirementClass` that are read
    resource_fields: tuple[str, ...]  #: fields of `Resource` that are read
    wanted: Callable[[RequirementClass], str]


@dataclass(frozen=True, kw_only=True)
class ClassCondition:
    """A condition of a task queue with the demanded values."""

    kind: ConditionKind
    asked: tuple[object, ...]  #: values of the fields `kind.class_fields`, in their order

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Cache key."""
        return self.kind.requirement, self.asked

    @cached_property
    def isolated(self) -> RequirementClass:
        """A class with this condition only."""
        asked: dict[str, Any] = {**_NOTHING, **dict(zip(self.kind.class_fields, self.asked, strict=True))}
        return RequirementClass(**asked)


@dataclass(frozen=True, kw_only=True)
class RequirementCondition:
    """One condition of the job's `Requirements`."""

    asked: Requirements

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Cache key; by `repr`, because True == 1."""
        return "Requirements", repr(self.asked)


@dataclass(frozen=True, kw_only=True)
class AdmissionCondition:
    """The job's own attributes, as checked by the `Requirements` of queues."""

    job: Mapping[str, Value]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Cache key; equal for jobs with equal attributes."""
        return "Application", repr(sorted(self.job.items()))


JobCondition = ClassCondition | RequirementCondition | AdmissionCondition


def list_conditions(demand: JobDemand) -> Iterator[JobCondition]:
    """All conditions of a job; it may run where all are fulfilled."""
    for kind, values in _conditions(demand.asked):
        yield ClassCondition(kind=kind, asked=values)
    if demand.requirements is not None:
        for each in evaluator.parts(demand.requirements):
            yield RequirementCondition(asked=each)
    if demand.job is not None:
        yield AdmissionCondition(job=demand.job)


def is_refused(condition: ClassCondition, resource: Resource) -> bool:
    """Whether the resource fails the condition."""
    return any(rules.refuses(rule, condition.isolated, resource) for rule in condition.kind.rules)


def _membership(field: str) -> Callable[[RequirementClass], str]:
    return lambda asked: ", ".join(sorted(getattr(asked, field)))


def _ram(asked: RequirementClass) -> str:
    needed = f"at least {rules.needed_ram(asked)} MB"
    if not asked.min_ram_per_core:
        return needed
    each = f"{asked.min_ram_per_core} for each of {asked.processors_min} processors"
    return f"{needed} ({asked.min_ram} and {each})" if asked.min_ram else f"{needed} ({each})"


CPU_TIME = ConditionKind(
    requirement="CPUTime",
    rules=("cpu_time",),
    class_fields=("cpu_time",),
    resource_fields=("cpu_time",),
    wanted=lambda asked: f"at least {asked.cpu_time} s",
)
SITE = ConditionKind(
    requirement="Site",
    rules=("site",),
    class_fields=("sites",),
    resource_fields=("sites",),
    wanted=_membership("sites"),
)
BANNED_SITES = ConditionKind(
    requirement="BannedSites",
    rules=("site",),
    class_fields=("banned_sites",),
    resource_fields=("sites",),
    wanted=lambda asked: f"none of {_membership('banned_sites')(asked)}",
)
GRID_CE = ConditionKind(
    requirement="GridCE",
    rules=("grid_ce",),
    class_fields=("grid_ces",),
    resource_fields=("grid_ces",),
    wanted=_membership("grid_ces"),
)
PLATFORM = ConditionKind(
    requirement="Platform",
    rules=("platform",),
    class_fields=("platforms",),
    resource_fields=("platforms",),
    wanted=_membership("platforms"),
)
JOB_TYPE = ConditionKind(
    requirement="JobType",
    rules=("job_type",),
    class_fields=("vo", "job_types"),
    resource_fields=("managed_types", "job_types"),
    wanted=lambda asked: (
        f"{_membership('job_types')(asked)}, which job managers handle: a resource that names it"
    ),
)
TAG = ConditionKind(
    requirement="Tags",
    rules=("tag",),
    class_fields=("tags",),
    resource_fields=("tags",),
    wanted=_membership("tags"),
)
REQUIRED_TAG = ConditionKind(
    requirement="RequiredTag",
    rules=("required_tag",),
    class_fields=("tags",),
    resource_fields=("required_tags",),
    wanted=lambda asked: f"no other tag than {_membership('tags')(asked)}" if asked.tags else "no tag at all",
)
RAM = ConditionKind(
    requirement="MinRAM",
    rules=("ram",),
    class_fields=("min_ram", "min_ram_per_core", "processors_min"),
    resource_fields=("max_ram",),
    wanted=_ram,
)
PROCESSORS = ConditionKind(
    requirement="NumberOfProcessors",
    rules=("processors", "tag"),
    class_fields=("processors_min", "tags"),
    resource_fields=("processors", "tags"),
    wanted=lambda asked: f"at least {max(asked.processors_min, 2 if asked.tags else 1)}",
)
GPUS = ConditionKind(
    requirement="GPUs",
    rules=("gpus",),
    class_fields=("gpus",),
    resource_fields=("gpus",),
    wanted=lambda asked: f"at least {asked.gpus}",
)
WHOLE_NODE = ConditionKind(
    requirement="WholeNode",
    rules=("whole_node", "tag"),
    class_fields=("whole_node", "tags"),
    resource_fields=("whole_node", "tags"),
    wanted=lambda _: "a node of its own",
)


#: Conditions on one number, where a larger offer never fails what a smaller one fulfils.
CAPACITIES = frozenset({CPU_TIME, RAM, GPUS})


def _conditions(asked: RequirementClass) -> Iterator[tuple[ConditionKind, tuple[object, ...]]]:
    yield CPU_TIME, (asked.cpu_time,)
    for kind, names in (
        (SITE, asked.sites),
        (BANNED_SITES, asked.banned_sites),
        (GRID_CE, asked.grid_ces),
        (PLATFORM, asked.platforms),
    ):
        if names:
            yield kind, (names,)
    if asked.job_types:
        yield JOB_TYPE, (asked.vo, asked.job_types)
    whole, cores, plain = _sorted_tags(asked.tags)
    for tag in sorted(plain):
        yield TAG, (frozenset({tag}),)
    yield REQUIRED_TAG, (asked.tags,)
    if asked.min_ram or asked.min_ram_per_core:
        yield RAM, (asked.min_ram, asked.min_ram_per_core, asked.processors_min)
    if asked.processors_min > 1 or cores:
        yield PROCESSORS, (asked.processors_min, cores)
    if asked.gpus:
        yield GPUS, (asked.gpus,)
    if asked.whole_node or whole:
        yield WHOLE_NODE, (asked.whole_node, whole)


@lru_cache(maxsize=10_000)
def _sorted_tags(tags: frozenset[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Split tags into those for a whole node, those for cores, and others."""
    whole = frozenset(tag for tag in tags if fold(tag) == _WHOLE)
    cores = frozenset(tag for tag in tags if is_core_tag(tag))
    return whole, cores, tags - whole - cores


def is_core_tag(tag: str) -> bool:
    """Whether a tag requests cores, such as `8Processors` and `MultiProcessor`."""
    folded = fold(tag)
    return folded == _SEVERAL_CORES or (folded.endswith(_CORES) and folded.removesuffix(_CORES).isdecimal())


#: Folded parameters from which each field of a pilot's offer is computed; see `queue_offer`.
_READ = {
    "cpu_time": ("cputime", "maxwallclocktime", "cpunormalizationfactor"),
    "max_ram": ("maxram",),
    "processors": ("numberofprocessors",),
    "gpus": ("gpus",),
    "platforms": ("platform",),
    "tags": ("tag",),
    "required_tags": ("requiredtag",),
    "whole_node": ("wholenode",),
}
_GLUE = {fold(each.name): fold(each.parameter) for each in glue.TABLE}


def condition_parameters(part: JobCondition, declarations: Declarations) -> Iterator[str]:
    """Folded names of the parameters that a condition reads, including the sources of GLUE names."""
    if isinstance(part, RequirementCondition):
        for name in map(fold, evaluator.parameters(part.asked, declarations)):
            yield name
            if name in _GLUE:
                yield _GLUE[name]
    elif isinstance(part, ClassCondition):
        for field_name in part.kind.resource_fields:
            yield from _READ.get(field_name, ())


def failure_parameters(part: JobCondition, requirement: str, declarations: Declarations) -> Iterator[str]:
    """Like `condition_parameters`; for an admission condition the queue's own condition that failed."""
    if isinstance(part, AdmissionCondition):
        yield admission.REQUIREMENTS if requirement == admission.OF_QUEUE else fold(requirement)
    else:
        yield from condition_parameters(part, declarations)
