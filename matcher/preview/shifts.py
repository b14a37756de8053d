"""Pools and classes of waiting jobs that gain or lose queues by a change.

Only the queues that a change can affect for a VO are evaluated in both versions.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from cs_config.options.operations import DEFAULTS
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions.proposals import Proposal
from matcher.explain import queue_set
from matcher.explain.job_conditions import AdmissionCondition, JobCondition, RequirementCondition
from matcher.explain.queue_report import class_conditions
from matcher.explain.queue_set import QueueSet
from requirements.bitset import list_positions
from requirements.values import Value, fold
from taskqueue.task_queues.listing import WaitingClass
from taskqueue.task_queues.requirement_class import RequirementClass

_Queues = frozenset[QueueAddress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Change of the queues that fulfil some requirements."""

    gained: _Queues
    lost: _Queues
    had: bool  #: whether any queue fulfilled them
    has: bool  #: whether any queue will


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
        """Jobs that lose their last queue."""
        return self.waiting.jobs if self.shift.had and not self.shift.has else 0

    @property
    def freed(self) -> int:
        """Jobs that get their first queue."""
        return self.waiting.jobs if self.shift.has and not self.shift.had else 0


@dataclass(slots=True, kw_only=True)
class _Side:
    """Some queues in one version."""

    survey: QueueSet
    _known: dict[int, _Queues] = field(default_factory=dict)

    def eligible(self, asked: Sequence[JobCondition]) -> _Queues:
        found = self.survey.fulfilling(asked)
        if found not in self._known:
            self._known[found] = frozenset(
                self.survey.queues[number].address for number in list_positions(found)
            )
        return self._known[found]


class VersionComparison:
    """Two versions of the changed queues as one VO gets them."""

    def __init__(self, before: Configuration, after: Configuration, vo: str, changed: _Queues) -> None:
        self._after = after
        self._vo = vo
        self._changed = changed
        self._old = _build_side(before, vo, changed)
        self._new = _build_side(after, vo, changed)

    def compute_shift(self, asked: Sequence[JobCondition]) -> Shift | None:
        """The change of the queues that fulfil these conditions; None: no change."""
        old, new = self._old.eligible(asked), self._new.eligible(asked)
        if old == new:
            return None
        elsewhere = bool(self._elsewhere.fulfilling(asked)) if not (old and new) else True
        return Shift(gained=new - old, lost=old - new, had=bool(old) or elsewhere, has=bool(new) or elsewhere)

    @property
    def now(self) -> QueueSet:
        """The changed queues in the new version."""
        return self._new.survey

    @cached_property
    def _elsewhere(self) -> QueueSet:
        """All unchanged queues."""
        rest = [each for each in self._after.addresses if each not in self._changed]
        return _build_side(self._after, self._vo, rest).survey


def _build_side(config: Configuration, vo: str, queues: Iterable[QueueAddress]) -> _Side:
    """The queues that the VO may use; the others fulfil nothing."""
    usable = [each for each in queues if config.knows(each) and config.usable(each, vo)]
    return _Side(survey=queue_set.some_queues(config, vo, usable))


def class_shifts(
    versions: VersionComparison, waiting: Iterable[WaitingClass], jobs: Mapping[int, Mapping[str, Value]]
) -> Iterator[ClassShift]:
    """The classes of a VO whose queues change.

    `jobs` holds the first job of each class by id, for queues with conditions on jobs.
    """
    for each in waiting:
        job = jobs.get(each.first_job)
        applying = () if job is None else (AdmissionCondition(job=job),)
        shift = versions.compute_shift((*class_conditions(each.asked, each.requirements), *applying))
        if shift is not None:
            yield ClassShift(waiting=each, shift=shift)


def pool_shifts(
    versions: VersionComparison, vo: str, pools: Mapping[str, str], waiting: Iterable[WaitingClass]
) -> Iterator[PoolShift]:
    """The pools of a VO (lower case) whose queues change; `pools` maps ids to original requirements, JSON."""
    jobs: defaultdict[str | None, int] = defaultdict(int)
    for each in waiting:
        jobs[each.asked.submit_pool] += each.jobs
    for pool_id, requirements in pools.items():
        asked = class_conditions(RequirementClass(vo=vo, cpu_time=0), requirements)
        shift = versions.compute_shift([part for part in asked if isinstance(part, RequirementCondition)])
        if shift is not None:
            yield PoolShift(pool_id=pool_id, vo=vo, waiting=jobs[pool_id], shift=shift)


_SITES: Final = ("Resources", "Sites")
_VOS: Final = "VOs"
#: Options that affect the evaluation of requirements.
_COMPARED_BY: Final = frozenset({"jobdescription", "pools"})

_Scope = tuple[str, ...]


class ChangedQueues:
    """The queues that the differences of a proposal can affect."""

    def __init__(self, proposal: Proposal) -> None:
        self._differences = proposal.differences
        self._all = frozenset(proposal.before.levels) | frozenset(proposal.after.levels)
        self._within = _group_by_scope(self._all)

    def from_differences(self, vo: str) -> frozenset[QueueAddress]:
        """The queues that can change for a VO, given in lower case."""
        return frozenset().union(*(self.queues_of(each.names, vo) for each in self._differences))

    def queues_of(self, names: tuple[str, ...], vo: str) -> frozenset[QueueAddress]:
        """The queues that a value at this path can change for a VO."""
        if names[0] == "Operations":
            return self._operations_queues(names, vo)
        if names[:2] != _SITES[: len(names)]:
            return self._all if names[:2] == ("Resources", "Computing") else frozenset()
        scope, below = _split(names[2:])
        if below[:1] == (_VOS,) and len(below) > 1 and fold(below[1]) != vo:
            return frozenset()
        return self._within.get(scope, frozenset())

    def _operations_queues(self, names: tuple[str, ...], vo: str) -> frozenset[QueueAddress]:
        for_vo = len(names) < 2 or names[1] == DEFAULTS or fold(names[1]) == vo
        compares = len(names) < 3 or fold(names[2]) in _COMPARED_BY
        return self._all if for_vo and compares else frozenset()


def _split(names: tuple[str, ...]) -> tuple[_Scope, tuple[str, ...]]:
    """Split a path below `Resources/Sites` into site, CE and queue, and the rest."""
    scope = names[:1]
    for between in ("CEs", "Queues"):
        if names[2 * len(scope) - 1 : 2 * len(scope)] != (between,):
            break
        found = names[2 * len(scope) : 2 * len(scope) + 1]
        if not found:
            return scope, ()
        scope += found
    return scope, names[2 * len(scope) - 1 :]


def _group_by_scope(queues: Iterable[QueueAddress]) -> Mapping[_Scope, frozenset[QueueAddress]]:
    found: defaultdict[_Scope, set[QueueAddress]] = defaultdict(set)
    for each in queues:
        names = (each.site, each.ce, each.queue)
        for length in range(4):
            found[names[:length]].add(each)
    return {scope: frozenset(members) for scope, members in found.items()}
