"""How many of the jobs that wait each parameter of a queue keeps away from it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher import looked_at, survey
from matcher.parts import Application
from matcher.shop_window import parts_of
from matcher.survey import Survey
from requirements.values import Value
from taskqueue.waiting_classes import WaitingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Waiting jobs that a parameter keeps away."""

    jobs: int = 0
    alone: int = 0  #: those that nothing else keeps away


def of(
    config: Configuration,
    address: QueueAddress,
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]],
) -> Mapping[str, Kept]:
    """What each parameter keeps away, by its folded name.

    Args:
        config: Where the queue is.
        address: The queue.
        waiting: The classes of jobs that wait; each is looked at as its VO gets the queue.
        jobs: Where the queue asks things of jobs, the first job of each class by its id.
    """
    surveys: dict[str, Survey] = {}
    kept: defaultdict[str, Kept] = defaultdict(Kept)
    for each in waiting:
        vo = each.asked.vo
        if vo not in surveys:
            surveys[vo] = survey.of_queues(config, vo, [address])
        culprits = list(_culprits(surveys[vo], each, jobs.get(each.first_job)))
        named = {name for names in culprits for name in names}
        for name in named:
            alone = each.jobs if all(name in names for names in culprits) else 0
            kept[name] = Kept(jobs=kept[name].jobs + each.jobs, alone=kept[name].alone + alone)
    return dict(kept)


def _culprits(
    here: Survey, waiting: WaitingClass, job: Mapping[str, Value] | None
) -> Iterator[frozenset[str]]:
    """For each thing that fails the parameters that it is about."""
    if not here.admitted:
        yield frozenset({"vo"})
    if not here.enabled:
        yield frozenset({"enabled"})
    applying = () if job is None else (Application(job=job),)
    for failure in here.failures_among((*parts_of(waiting.asked, waiting.requirements), *applying)):
        names = looked_at.of_failure(failure.part, failure.requirement, here.declarations)
        yield frozenset(names)
