"""A job's demand, split into conditions that can be checked separately, and the queue parameters each reads.

Each condition is evaluated by the evaluator or by `matcher.rules`; this module only names the fields. A
property test holds all conditions together equal to `rules.refusals`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import Connection

from cs_config.tree import admission, glue
from cs_config.tree.configuration import Configuration
from matcher import rules
from matcher.limits import job_groups
from requirements import canonical, evaluator
from requirements.canonical import Requirements
from requirements.column_index import SingleItem
from requirements.record import Declarations
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.values import Value, fold
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import WaitingClass


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
    rule: str  #: condition of `matcher.rules`
    class_fields: tuple[str, ...]  #: fields of `RequirementClass` that are read
    resource_fields: tuple[str, ...]  #: fields of `Resource` that are read
    wanted: str | Callable[[RequirementClass], str]  #: demanded value, a format of `{asked}` and `{names}`
    #: What a queue must do to fulfil it, with `{names}`, or `{number}` for the number in `rules.NEEDS`; None:
    #: no change of a queue helps.
    need: str | None


@dataclass(frozen=True, kw_only=True)
class ClassCondition:
    """A condition of a task queue with the demanded values."""

    kind: ConditionKind
    asked: tuple[object, ...]  #: values of the fields `kind.class_fields`, in their order

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Cache key."""
        return self.kind.requirement, self.asked

    @property
    def isolated(self) -> RequirementClass:
        """A class with this condition only; not kept, since a class may have thousands of conditions."""
        asked: dict[str, Any] = {"vo": "", "cpu_time": 0}
        return RequirementClass(**asked | dict(zip(self.kind.class_fields, self.asked, strict=True)))

    @property
    def names(self) -> str:
        """The demanded names."""
        return ", ".join(sorted(getattr(self.isolated, self.kind.class_fields[-1])))

    @property
    def wanted(self) -> str:
        """The demanded value, as text for people."""
        wanted, asked = self.kind.wanted, self.isolated
        if not isinstance(wanted, str):
            return wanted(asked)
        return wanted.format(asked=asked, names=self.names if "{names}" in wanted else "")


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


@lru_cache(maxsize=20_000)
def class_conditions(asked: RequirementClass, requirements: str | None) -> tuple[JobCondition, ...]:
    """The conditions of a class and of its pool's requirements, JSON."""
    read = None if requirements is None else canonical.from_json(requirements)
    return tuple(list_conditions(JobDemand(asked=asked, requirements=read)))


#: The attributes of the first job of each class by id, for queues with conditions on jobs; it represents its
#: class.
JobAds = Mapping[int, Mapping[str, Value]]


def read_job_ads(
    conn: Connection, config: Configuration, waiting: Collection[WaitingClass], *, needed: bool
) -> JobAds:
    """The first job of each class; none if no queue that is looked at has conditions on jobs."""
    jobs = listing.list_first_jobs(conn, waiting) if needed else ()
    return {job.job_id: job_groups.job_ad(job, config) for job in jobs}


def waiting_conditions(waiting: WaitingClass, jobs: JobAds) -> tuple[JobCondition, ...]:
    """The conditions of waiting jobs."""
    job = jobs.get(waiting.first_job)
    found = class_conditions(waiting.asked, waiting.requirements)
    return found if job is None else (*found, AdmissionCondition(job=job))


def is_refused(kind: ConditionKind, isolated: RequirementClass, resource: Resource) -> bool:
    """Whether the resource fails the rule of a condition, given as a class with this one only."""
    return not rules.BY_NAME[kind.rule].select(SingleItem(isolated, rules.COLUMNS), resource)


def _near_data(asked: RequirementClass) -> str:
    listed = sorted(", ".join(sorted(places)) for places in asked.replicas)
    more = f" and near {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"a site near {' and near '.join(listed[:3])}{more}"


def _ram(asked: RequirementClass) -> str:
    needed = f"at least {rules.needed_ram(asked)} MB"
    if not asked.min_ram_per_core:
        return needed
    each = f"{asked.min_ram_per_core} for each of {asked.processors_min} processors"
    return f"{needed} ({asked.min_ram} and {each})" if asked.min_ram else f"{needed} ({each})"


def _kind(
    requirement: str,
    rule: str,
    class_fields: str,
    resource_fields: str,
    wanted: str | Callable[[RequirementClass], str] = "{names}",
    need: str | None = None,
) -> ConditionKind:
    """A row of the table below; several names are separated by spaces."""
    return ConditionKind(
        requirement=requirement,
        rule=rule,
        class_fields=tuple(class_fields.split()),
        resource_fields=tuple(resource_fields.split()),
        wanted=wanted,
        need=need,
    )


CPU_TIME = _kind(
    "CPUTime", "cpu_time", "cpu_time", "cpu_time", "at least {asked.cpu_time} s", "offer CPUTime {number} s"
)
SITE = _kind("Site", "site", "sites", "sites")
BANNED_SITES = _kind("BannedSites", "site", "banned_sites", "sites", "none of {names}")
INPUT_DATA = _kind("InputData", "input_data", "replicas", "near", lambda asked: _near_data(asked))
GRID_CE = _kind("GridCE", "grid_ce", "grid_ces", "grid_ces")
PLATFORM = _kind("Platform", "platform", "platforms", "platforms", need="offer the Platform {names}")
JOB_TYPE = _kind(
    "JobType",
    "job_type",
    "vo job_types",
    "managed_types job_types",
    "{names}, which job managers handle: a resource that names it",
    "have a job manager for the JobType {names}",
)
TAG = _kind("Tags", "tag", "tags", "tags", need="offer the Tag {names}")
REQUIRED_TAG = _kind(
    "RequiredTag",
    "required_tag",
    "tags",
    "required_tags",
    lambda asked: f"no other tag than {', '.join(sorted(asked.tags))}" if asked.tags else "no tag at all",
    "require no Tag (RequiredTag)",
)
RAM = _kind(
    "MinRAM", "ram", "min_ram min_ram_per_core processors_min", "max_ram", _ram, "offer MaxRAM {number} MB"
)
PROCESSORS = _kind(
    "NumberOfProcessors",
    "processors",
    "processors_min tags",
    "processors tags",
    lambda asked: f"at least {max(asked.processors_min, 2 if asked.tags else 1)}",
    "offer NumberOfProcessors {number}",
)
GPUS = _kind("GPUs", "gpus", "gpus", "gpus", "at least {asked.gpus}", "offer GPUs {number}")
WHOLE_NODE = _kind(
    "WholeNode",
    "whole_node",
    "whole_node tags",
    "whole_node tags",
    "a node of its own",
    "offer WholeNode: true",
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
    if asked.replicas:
        yield INPUT_DATA, (asked.replicas,)
    if asked.job_types:
        yield JOB_TYPE, (asked.vo, asked.job_types)
    tags = rules.sort_tags(asked.tags)
    for tag in sorted(tags.plain):
        yield TAG, (frozenset({tag}),)
    yield REQUIRED_TAG, (asked.tags,)
    if asked.min_ram or asked.min_ram_per_core:
        yield RAM, (asked.min_ram, asked.min_ram_per_core, asked.processors_min)
    if asked.processors_min > 1 or tags.cores:
        yield PROCESSORS, (asked.processors_min, tags.cores)
    if asked.gpus:
        yield GPUS, (asked.gpus,)
    if asked.whole_node or tags.whole_node:
        yield WHOLE_NODE, (asked.whole_node, tags.whole_node)


#: Folded parameters from which each field of a pilot's offer is computed; see `queue_offer`.
_READ = {
    "cpu_time": ("cputime", "maxcputime", "maxwallclocktime", "cpunormalizationfactor", "si00"),
    "max_ram": ("maxram", "maxrampercore"),
    "processors": ("numberofprocessors",),
    "gpus": ("gpus", "numberofgpus"),
    "platforms": ("platform",),
    "near": ("se",),
    "tags": ("tag",),
    "required_tags": ("requiredtag",),
    "whole_node": ("wholenode",),
}
_GLUE = {fold(each.name): fold(each.parameter) for each in glue.TABLE}


def list_parameters(part: JobCondition, requirement: str, declarations: Declarations) -> Iterator[str]:
    """Folded names of the queue parameters that a condition reads, including the sources of GLUE names.

    Of an admission condition, the queue's own condition that failed, as named in `requirement`.
    """
    if isinstance(part, AdmissionCondition):
        yield admission.REQUIREMENTS if requirement == admission.OF_QUEUE else fold(requirement)
    elif isinstance(part, RequirementCondition):
        for name in map(fold, evaluator.parameters(part.asked, declarations)):
            yield name
            if name in _GLUE:
                yield _GLUE[name]
    else:
        for field_name in part.kind.resource_fields:
            yield from _READ.get(field_name, ())
