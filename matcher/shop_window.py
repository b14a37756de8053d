"""A queue in front of everything that waits: what it may run, what excludes the rest, what would win more."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher import better_offers, parts, survey
from matcher.better_offers import BetterOffer
from matcher.explain import FAULTY, MEANINGFUL
from matcher.failures import Failure
from matcher.parts import Application, Demand, Part
from matcher.survey import Survey
from matcher.wishes import Wish, wish
from requirements import canonical
from requirements.bits import bits
from requirements.values import Value, lookup, shown
from taskqueue.classes import RequirementClass
from taskqueue.waiting_classes import WaitingClass

#: What a job says of itself is not for everybody who may look at a queue.
_NOT_TOLD = "not true of these jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Waiting jobs, and of how many classes they are."""

    jobs: int = 0
    classes: int = 0

    def __add__(self, other: "Work") -> "Work":
        """Both together."""
        return Work(jobs=self.jobs + other.jobs, classes=self.classes + other.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """What one requirement keeps away from the queue."""

    requirement: str
    wanted: str  #: by most of the jobs
    has: str | None  #: what the queue has; None: nothing of that name
    work: Work
    only_this: int  #: jobs that fail this and nothing else
    vo: str  #: of the example
    example_job: int  #: one of them, the oldest of the largest class


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopWindow:
    """How all that waits stands to one queue."""

    served: Mapping[str, Work]  #: by VO
    waiting: Mapping[str, Work]  #: by VO, served or not
    excluded: tuple[Excluded, ...]  #: what costs most jobs first
    offers: tuple[BetterOffer, ...]  #: best gain first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Miss:
    """One reason why queues do not serve a class."""

    requirement: str
    wanted: str
    failure: Failure | None  #: None: the queue is not open to the VO
    queues: int  #: that do not


_Seen = tuple[WaitingClass, tuple[_Miss, ...]]


def window(
    config: Configuration,
    address: QueueAddress,
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]] = MappingProxyType({}),
) -> ShopWindow:
    """What the queue is to the classes that wait.

    Args:
        config: Where the queue is.
        address: The queue.
        waiting: The classes.
        jobs: Where the queue asks things of jobs, the first job of each class by its id, which stands for
            the others.
    """
    seen: list[_Seen] = []
    surveys: dict[str, Survey] = {}
    wishes: list[tuple[int, Wish, WaitingClass]] = []
    for vo, here, judged in _judged(config, [address], waiting, jobs):
        surveys[vo] = here
        seen += judged
        wishes += _wishes(here, vo, judged)
    return ShopWindow(
        served=_sums(each for each, misses in seen if not misses),
        waiting=_sums(each for each, _ in seen),
        excluded=tuple(_excluded(seen, surveys)),
        offers=tuple(better_offers.of((wished, each) for _, wished, each in wishes)),
    )


def offers(
    config: Configuration,
    addresses: Iterable[QueueAddress],
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]] = MappingProxyType({}),
) -> dict[QueueAddress, list[BetterOffer]]:
    """What each of some queues could offer; all that waits is looked at once, for all of them."""
    wishes: defaultdict[QueueAddress, list[tuple[Wish, WaitingClass]]] = defaultdict(list)
    for vo, here, judged in _judged(config, list(addresses), waiting, jobs):
        for queue, wished, each in _wishes(here, vo, judged):
            wishes[here.queues[queue].address].append((wished, each))
    return {address: better_offers.of(those) for address, those in wishes.items()}


def _judged(
    config: Configuration,
    addresses: Sequence[QueueAddress],
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]],
) -> Iterator[tuple[str, Survey, list[_Seen]]]:
    """The queues in front of each VO, with why they do not serve which of its classes."""
    by_vo: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in waiting:
        by_vo[each.asked.vo].append(each)
    for vo, classes in sorted(by_vo.items()):
        here = survey.of_queues(config, vo, addresses)
        yield vo, here, [(each, _misses(here, vo, each, jobs.get(each.first_job))) for each in classes]


def _misses(
    here: Survey, vo: str, waiting: WaitingClass, job: Mapping[str, Value] | None
) -> tuple[_Miss, ...]:
    asked = parts_of(waiting.asked, waiting.requirements)
    applying = () if job is None else (Application(job=job),)
    return (*_closed(here, vo), *_failing(here, (*asked, *applying)))


def _closed(here: Survey, vo: str) -> Iterator[_Miss]:
    if shut := here.everything & ~here.admitted:
        yield _Miss(requirement="VO", wanted=vo, failure=None, queues=shut)
    if off := here.everything & ~here.enabled:
        yield _Miss(requirement="Enabled", wanted="true", failure=None, queues=off)
    if here.faulty:
        yield _Miss(requirement=FAULTY, wanted=MEANINGFUL, failure=None, queues=here.faulty)


def _failing(here: Survey, asked: Sequence[Part]) -> Iterator[_Miss]:
    for failure in here.failures_among(asked):
        if failure.queues:
            yield _Miss(
                requirement=failure.requirement,
                wanted=failure.wanted,
                failure=failure,
                queues=failure.queues,
            )


@lru_cache(maxsize=20_000)
def parts_of(asked: RequirementClass, requirements: str | None) -> tuple[Part, ...]:
    """What a class asks; the same for every queue that is looked at."""
    read = None if requirements is None else canonical.from_json(requirements)
    return tuple(parts.parts(Demand(asked=asked, requirements=read)))


def _has(here: Survey, miss: _Miss) -> str | None:
    """What the queue has instead."""
    if miss.requirement == FAULTY:
        return here.queues[0].fault
    if miss.failure is None:
        vos = lookup(here.queues[0].values, "VO")
        return "false" if miss.requirement == "Enabled" else None if vos is None else shown(vos)
    if isinstance(miss.failure.part, Application):
        return _NOT_TOLD
    return here.failed.told(miss.failure, here.queues[0], next(here.failed.seen(miss.failure))[0])


def _sums(waiting: Iterable[WaitingClass]) -> dict[str, Work]:
    sums: defaultdict[str, Work] = defaultdict(Work)
    for each in waiting:
        sums[each.asked.vo] += Work(jobs=each.jobs, classes=1)
    return dict(sums)


def _excluded(seen: Sequence[_Seen], surveys: Mapping[str, Survey]) -> list[Excluded]:
    groups: defaultdict[str, list[tuple[WaitingClass, _Miss, bool]]] = defaultdict(list)
    for each, misses in seen:
        for requirement, miss in {miss.requirement: miss for miss in reversed(misses)}.items():
            alone = all(other.requirement == requirement for other in misses)
            groups[requirement].append((each, miss, alone))
    found = [_group(members, surveys) for members in groups.values()]
    return sorted(found, key=lambda each: (-each.work.jobs, -each.only_this, each.requirement))


def _group(members: Sequence[tuple[WaitingClass, _Miss, bool]], surveys: Mapping[str, Survey]) -> Excluded:
    largest, miss, _ = max(members, key=lambda each: (each[2], each[0].jobs))
    return Excluded(
        requirement=miss.requirement,
        wanted=miss.wanted,
        has=_has(surveys[largest.asked.vo], miss),
        work=Work(jobs=sum(each.jobs for each, *_ in members), classes=len(members)),
        only_this=sum(each.jobs for each, _, alone in members if alone),
        vo=largest.asked.vo,
        example_job=largest.first_job,
    )


def _wishes(here: Survey, vo: str, judged: Iterable[_Seen]) -> Iterator[tuple[int, Wish, WaitingClass]]:
    """What each class would wish of a queue, by its number, that keeps it away by one thing only."""
    for each, misses in judged:
        once = twice = 0
        for miss in misses:
            once, twice = once | miss.queues, twice | once & miss.queues
        for miss in misses:
            for queue in bits(miss.queues & ~twice):
                found = _wish(here, vo, miss, queue)
                if found is not None:
                    yield queue, found, each


def _wish(here: Survey, vo: str, miss: _Miss, queue: int) -> Wish | None:
    if miss.failure is not None:
        return wish(miss.failure.part, miss.wanted, here, queue)
    if miss.requirement == FAULTY:
        return None
    return Wish(
        text=f"admit the VO {vo}" if miss.requirement == "VO" else "switch the queue on (Enabled: true)"
    )
