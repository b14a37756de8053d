"""How many of the jobs that wait each parameter of a queue keeps away from it.

Which of the jobs that wait each site could run, by the tree; what holds there now is not asked.
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
from taskqueue.task_queues.waiting_classes import WaitingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterImpact:
    """Waiting jobs that a parameter keeps away."""

    jobs: int = 0
    alone: int = 0  #: those that nothing else keeps away


def parameter_impacts(
    config: Configuration,
    address: QueueAddress,
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]],
) -> Mapping[str, ParameterImpact]:
    """What each parameter keeps away, by its folded name.

    Args:
        config: Where the queue is.
        address: The queue.
        waiting: The classes of jobs that wait; each is looked at as its VO gets the queue.
        jobs: Where the queue asks things of jobs, the first job of each class by its id.
    """
    surveys: dict[str, QueueSet] = {}
    kept: defaultdict[str, ParameterImpact] = defaultdict(ParameterImpact)
    for each in waiting:
        vo = each.asked.vo
        if vo not in surveys:
            surveys[vo] = queue_set.some_queues(config, vo, [address])
        culprits = list(_failing_parameters(surveys[vo], each, jobs.get(each.first_job)))
        named = {name for names in culprits for name in names}
        for name in named:
            alone = each.jobs if all(name in names for names in culprits) else 0
            kept[name] = ParameterImpact(jobs=kept[name].jobs + each.jobs, alone=kept[name].alone + alone)
    return dict(kept)


def _failing_parameters(
    here: QueueSet, waiting: WaitingClass, job: Mapping[str, Value] | None
) -> Iterator[frozenset[str]]:
    """For each thing that fails the parameters that it is about."""
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
    """How many of the waiting jobs some queue of each site could run; a site that could run none is left out.

    Args:
        config: The tree.
        waiting: The classes of jobs that wait.
        jobs: Where queues ask things of jobs, the first job of each class by its id, for all of the class.
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
    """For each VO and set of queues the jobs that may run in just these: many classes have the same."""
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
