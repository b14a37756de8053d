"""How many waiting jobs each parameter of a queue excludes, and how many each site could run.

Computed from the configuration tree alone, without bans, limits and throttles.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_report, queue_set
from matcher.explain.explanation import FAULTY
from matcher.explain.job_conditions import JobAds
from matcher.explain.queue_set import QueueSet
from matcher.explain.unmet_conditions import UnmetCondition
from requirements.values import fold
from taskqueue.task_queues.waiting_classes import WaitingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterImpact:
    """Waiting jobs that a parameter excludes."""

    jobs: int = 0
    alone: int = 0  #: jobs that no other parameter excludes


def parameter_impacts(
    config: Configuration, address: QueueAddress, waiting: Iterable[WaitingClass], jobs: JobAds
) -> Mapping[str, ParameterImpact]:
    """Excluded jobs by folded parameter name; each class is checked with the parameters for its VO."""
    impacts: defaultdict[str, ParameterImpact] = defaultdict(ParameterImpact)
    for _, here, checked in queue_report.check_classes(config, [address], waiting, jobs):
        for each, failures in checked:
            found = [_parameters(here, failure) for failure in failures if not _is_fault(failure)]
            for name in frozenset[str]().union(*found):
                known, alone = impacts[name], all(name in names for names in found)
                impacts[name] = ParameterImpact(
                    jobs=known.jobs + each.jobs, alone=known.alone + (each.jobs if alone else 0)
                )
    return dict(impacts)


def _is_fault(failure: UnmetCondition) -> bool:
    return failure.part is None and failure.requirement == FAULTY


def _parameters(here: QueueSet, failure: UnmetCondition) -> frozenset[str]:
    if failure.part is None:
        return frozenset({fold(failure.requirement)})
    return frozenset(job_conditions.list_parameters(failure.part, failure.requirement, here.declarations))


def runnable_by_site(config: Configuration, waiting: Iterable[WaitingClass], jobs: JobAds) -> Counter[str]:
    """How many waiting jobs some queue of each site could run; sites that could run none are omitted."""
    # Summed by VO and set of eligible queues, which many classes share.
    eligible: Counter[tuple[str, int]] = Counter()
    for each in waiting:
        whole = queue_set.all_queues(config, each.asked.vo)
        queues = whole.fulfilling(job_conditions.waiting_conditions(each, jobs))
        eligible[each.asked.vo, queues] += each.jobs
    found: Counter[str] = Counter()
    for (vo, queues), number in eligible.items():
        for site, there in queue_set.all_queues(config, vo).sites.items():
            if queues & there:
                found[site] += number
    return found
