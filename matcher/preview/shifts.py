"""Which pools and waiting jobs gain or lose queues, and for which none is left or the first is found."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher import survey
from matcher.parts import Application, Part, Requirement
from matcher.shop_window import parts_of
from matcher.survey import Survey
from requirements.bits import bits
from requirements.values import Value
from taskqueue.classes import RequirementClass
from taskqueue.waiting_classes import WaitingClass

_Queues = frozenset[QueueAddress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How the queues of some requirements change."""

    gained: _Queues
    lost: _Queues
    had: bool  #: whether there was any
    has: bool  #: whether there is any


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShift:
    """A pool that gains or loses queues."""

    pool_id: str
    vo: str
    waiting: int  #: jobs
    shift: Shift


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShift:
    """A class of waiting jobs that gains or loses queues."""

    waiting: WaitingClass
    shift: Shift

    @property
    def stuck(self) -> int:
        """Jobs whose last queue goes."""
        return self.waiting.jobs if self.shift.had and not self.shift.has else 0

    @property
    def freed(self) -> int:
        """Jobs that get their first queue."""
        return self.waiting.jobs if self.shift.has and not self.shift.had else 0


@dataclass(slots=True, kw_only=True)
class _Side:
    """Some queues as one version has them."""

    survey: Survey
    _known: dict[int, _Queues] = field(default_factory=dict)

    def eligible(self, asked: Sequence[Part]) -> _Queues:
        found = self.survey.fulfilling(asked)
        if found not in self._known:
            self._known[found] = frozenset(self.survey.queues[number].address for number in bits(found))
        return self._known[found]


class Shifts:
    """Two versions in front of one VO."""

    def __init__(self, before: Configuration, after: Configuration, vo: str, touched: _Queues) -> None:
        self._after = after
        self._vo = vo
        self._touched = touched
        self._old = _side(before, vo, touched)
        self._new = _side(after, vo, touched)

    def of(self, asked: Sequence[Part]) -> Shift | None:
        """How the queues of what is asked change; None: not at all."""
        old, new = self._old.eligible(asked), self._new.eligible(asked)
        if old == new:
            return None
        elsewhere = bool(self._elsewhere.fulfilling(asked)) if not (old and new) else True
        return Shift(gained=new - old, lost=old - new, had=bool(old) or elsewhere, has=bool(new) or elsewhere)

    @property
    def now(self) -> Survey:
        """The touched queues as they would be."""
        return self._new.survey

    @cached_property
    def _elsewhere(self) -> Survey:
        """All queues that stay as they are."""
        rest = [each for each in self._after.addresses if each not in self._touched]
        return _side(self._after, self._vo, rest).survey


def _side(config: Configuration, vo: str, queues: Iterable[QueueAddress]) -> _Side:
    """Those of the queues that the VO may use: of the others nothing has to be asked."""
    usable = [each for each in queues if config.knows(each) and config.usable(each, vo)]
    return _Side(survey=survey.of_queues(config, vo, usable))


def of_classes(
    shifts: Shifts, waiting: Iterable[WaitingClass], jobs: Mapping[int, Mapping[str, Value]]
) -> Iterator[ClassShift]:
    """The classes of a VO whose queues change.

    Args:
        shifts: The versions in front of the VO.
        waiting: Its classes.
        jobs: Where queues ask things of jobs, the first job of each class by its id.
    """
    for each in waiting:
        job = jobs.get(each.first_job)
        applying = () if job is None else (Application(job=job),)
        shift = shifts.of((*parts_of(each.asked, each.requirements), *applying))
        if shift is not None:
            yield ClassShift(waiting=each, shift=shift)


def of_pools(
    shifts: Shifts, vo: str, pools: Mapping[str, str], waiting: Iterable[WaitingClass]
) -> Iterator[PoolShift]:
    """The pools of a VO whose queues change.

    Args:
        shifts: The versions in front of the VO.
        vo: Lower case.
        pools: Their requirements as first written, JSON, by id.
        waiting: The classes that wait.
    """
    jobs: defaultdict[str | None, int] = defaultdict(int)
    for each in waiting:
        jobs[each.asked.submit_pool] += each.jobs
    for pool_id, requirements in pools.items():
        asked = parts_of(RequirementClass(vo=vo, cpu_time=0), requirements)
        shift = shifts.of([part for part in asked if isinstance(part, Requirement)])
        if shift is not None:
            yield PoolShift(pool_id=pool_id, vo=vo, waiting=jobs[pool_id], shift=shift)
