"""How many waiting jobs each parameter of a queue excludes, and how many each site could run.

Computed from the configuration tree alone, without bans, limits and throttles.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_set
from matcher.explain.job_conditions import AdmissionCondition
from matcher.explain.queue_report import class_conditions
from matcher.explain.queue_set import QueueSet
from requirements.values import Value
from taskqueue.task_queues.listing import WaitingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterImpact:
    """Waiting jobs that a parameter excludes."""

    jobs: int = 0
    alone: int = 0  #: jobs that no other parameter excludes


def parameter_impacts(
    config: Configuration,
    address: QueueAddress,
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]],
) -> Mapping[str, ParameterImpact]:
    """Excluded jobs by folded parameter name.

    Each class is checked with the queue's parameters for its VO. `jobs` holds the first job of each class by
    id, for queues with conditions on jobs.
    """
    surveys: dict[str, QueueSet] = {}
    impacts: defaultdict[str, ParameterImpact] = defaultdict(ParameterImpact)
    for each in waiting:
        vo = each.asked.vo
        if vo not in surveys:
            surveys[vo] = queue_set.some_queues(config, vo, [address])
        failures = list(_failing_parameters(surveys[vo], each, jobs.get(each.first_job)))
        named = {name for names in failures for name in names}
        for name in named:
            alone = each.jobs if all(name in names for names in failures) else 0
            impacts[name] = ParameterImpact(
                jobs=impacts[name].jobs + each.jobs, alone=impacts[name].alone + alone
            )
    return dict(impacts)


def _failing_parameters(
    here: QueueSet, waiting: WaitingClass, job: Mapping[str, Value] | None
) -> Iterator[frozenset[str]]:
    """The parameters behind each failure."""
    if not here.admitted:
        yield frozenset({"vo"})
    if not here.enabled:
        yield frozenset({"enabled"})
    applying = () if job is None else (AdmissionCondition(job=job),)
    for failure in here.failures_among((*class_conditions(waiting.asked, waiting.requirements), *applying)):
        names = job_conditions.failure_parameters(failure.part, failure.requirement, here.declarations)
        yield frozenset(names)


def runnable_by_site(
    config: Configuration, waiting: Iterable[WaitingClass], jobs: Mapping[int, Mapping[str, Value]]
) -> Counter[str]:
    """How many waiting jobs some queue of each site could run; sites that could run none are omitted.

    `jobs` holds the first job of each class by id, for queues with conditions on jobs; it represents its
    class.
    """
    found: Counter[str] = Counter()
    for vo, queues, number in _jobs_by_queues(config, waiting, jobs):
        for site, there in queue_set.all_queues(config, vo).sites.items():
            if queues & there:
                found[site] += number
    return found


def _jobs_by_queues(
    config: Configuration, waiting: Iterable[WaitingClass], jobs: Mapping[int, Mapping[str, Value]]
) -> Iterator[tuple[str, int, int]]:
    """Jobs summed by VO and set of eligible queues, which many classes share."""
    found: defaultdict[tuple[str, int], int] = defaultdict(int)
    for each in waiting:
        job = jobs.get(each.first_job)
        applying = () if job is None else (AdmissionCondition(job=job),)
        whole = queue_set.all_queues(config, each.asked.vo)
        found[
            each.asked.vo, whole.fulfilling((*class_conditions(each.asked, each.requirements), *applying))
        ] += each.jobs
    for (vo, queues), number in found.items():
        yield vo, queues, number
