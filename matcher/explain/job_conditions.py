"""A job's demand, split into conditions that can be checked separately, and the queue parameters each reads.

Each is evaluated by the evaluator, or is a row of `matcher.conditions`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy import Connection

from cs_config.tree import admission, glue
from cs_config.tree.configuration import Configuration
from matcher.conditions import CONDITIONS, Condition, DemandValues, KeywordDemand
from matcher.limits import job_groups
from requirements import canonical, evaluator
from requirements.canonical import Requirements
from requirements.kept import keep
from requirements.record import Declarations
from requirements.requirement_class import RequirementClass
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

    @classmethod
    def from_stated(cls, asked: RequirementClass, stated: Requirements | None) -> "JobDemand":
        """The demand of a job that is not stored: its class, and the Requirements that it states."""
        return cls(asked=asked, requirements=None if stated is None else canonical.pool_form(stated))


@dataclass(frozen=True, kw_only=True)
class ClassCondition:
    """A condition of a task queue with the demanded values."""

    condition: Condition
    demand: KeywordDemand
    values: DemandValues

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Cache key."""
        return self.demand.keyword, self.values

    @property
    def isolated(self) -> RequirementClass:
        """A class with this condition only; not kept, since a class may have thousands of conditions."""
        return self.demand.isolate(self.values)

    @property
    def wanted(self) -> str:
        """The demanded value, as text for people."""
        return self.demand.format_wanted(self.isolated)


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
    for condition in CONDITIONS:
        for of_keyword in condition.demands:
            for values in of_keyword.list_values(demand.asked):
                yield ClassCondition(condition=condition, demand=of_keyword, values=values)
    if demand.requirements is not None:
        for each in evaluator.parts(demand.requirements):
            yield RequirementCondition(asked=each)
    if demand.job is not None:
        yield AdmissionCondition(job=demand.job)


def _measure(_: object, asked: RequirementClass, requirements: str | None) -> int:
    names = sum(map(len, (asked.tags, asked.sites, asked.banned_sites, asked.grid_ces, asked.platforms)))
    return 2000 + 200 * names + 100 * len(requirements or "")


@keep(64, _measure)
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


def list_parameters(part: JobCondition, requirement: str, declarations: Declarations) -> Iterator[str]:
    """Folded names of the queue parameters that a condition reads, with the sources of those that follow.

    Of an admission condition, the queue's own condition that failed, as named in `requirement`.
    """
    if isinstance(part, AdmissionCondition):
        yield admission.REQUIREMENTS if requirement == admission.OF_QUEUE else fold(requirement)
    elif isinstance(part, RequirementCondition):
        for name in map(fold, evaluator.parameters(part.asked, declarations)):
            yield name
            yield from sorted(glue.SOURCES.get(name, ()))
    else:
        yield from map(fold, part.condition.parameters)
