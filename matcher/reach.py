"""Which of the jobs that wait each site could run, by the tree; what holds there now is not asked."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from cs_config.configuration import Configuration
from matcher import survey
from matcher.parts import Application
from matcher.shop_window import parts_of
from requirements.values import Value
from taskqueue.waiting_classes import WaitingClass


def by_site(
    config: Configuration, waiting: Iterable[WaitingClass], jobs: Mapping[int, Mapping[str, Value]]
) -> Counter[str]:
    """How many of the waiting jobs some queue of each site could run; a site that could run none is left out.

    Args:
        config: The tree.
        waiting: The classes of jobs that wait.
        jobs: Where queues ask things of jobs, the first job of each class by its id, for all of the class.
    """
    found: Counter[str] = Counter()
    for vo, queues, number in _queues(config, waiting, jobs):
        for site, there in survey.of_vo(config, vo).sites.items():
            if queues & there:
                found[site] += number
    return found


def _queues(
    config: Configuration, waiting: Iterable[WaitingClass], jobs: Mapping[int, Mapping[str, Value]]
) -> Iterator[tuple[str, int, int]]:
    """For each VO and set of queues the jobs that may run in just these: many classes have the same."""
    found: defaultdict[tuple[str, int], int] = defaultdict(int)
    for each in waiting:
        job = jobs.get(each.first_job)
        applying = () if job is None else (Application(job=job),)
        whole = survey.of_vo(config, each.asked.vo)
        found[each.asked.vo, whole.fulfilling((*parts_of(each.asked, each.requirements), *applying))] += (
            each.jobs
        )
    for (vo, queues), number in found.items():
        yield vo, queues, number
