"""Pools and classes of waiting jobs that gain or lose queues by a change.

Only the queues that a change can affect for a VO are evaluated in both versions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from cs_config.editing.proposals import Proposal
from cs_config.options.operations import DEFAULTS, options_for
from cs_config.tree.address import SITES, QueueAddress, node_depth
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_set
from matcher.explain.job_conditions import JobAds, JobCondition, RequirementCondition
from matcher.explain.queue_set import QueueSet
from matcher.explain.work_budget import WorkBudget
from requirements.requirement_class import RequirementClass
from requirements.values import fold
from taskqueue.task_queues.class_derivation import derive_class_again
from taskqueue.task_queues.listing import WaitingClass

_Queues = frozenset[QueueAddress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Change of the queues that fulfil some requirements."""

    gained: _Queues
    lost: _Queues
    had: bool  #: whether any queue fulfilled them
    has: bool  #: whether any queue will
    is_complete: bool = True  #: False: the other queues were not evaluated, since the budget was spent


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


class VersionComparison:
    """Two versions of the changed queues as one VO gets them."""

    def __init__(
        self, before: Configuration, after: Configuration, vo: str, changed: _Queues, budget: WorkBudget
    ) -> None:
        """The budget is for the queues that do not change."""
        self._after = after
        self._budget = budget
        self.vo = vo
        self._options = options_for(before, vo), options_for(after, vo)
        self._changed = changed
        self._old = _usable_queues(before, vo, changed)
        self.new = _usable_queues(after, vo, changed)  #: the changed queues in the new version

    def compute_shift(
        self, asked: Sequence[JobCondition], before: Sequence[JobCondition] | None = None
    ) -> Shift | None:
        """The change of the queues that fulfil these conditions; None: no change.

        `before`: the conditions in the old version, if they are others.
        """
        old = self._old.addresses(self._old.fulfilling(asked if before is None else before))
        new = self.new.addresses(self.new.fulfilling(asked))
        if old == new:
            return None
        elsewhere = True if old and new else self._is_fulfilled_elsewhere(asked)
        return Shift(
            gained=new - old,
            lost=old - new,
            had=bool(old or elsewhere),
            has=bool(new or elsewhere),
            is_complete=elsewhere is not None,
        )

    def _is_fulfilled_elsewhere(self, asked: Sequence[JobCondition]) -> bool | None:
        """Whether a queue that does not change fulfils the conditions; None: the budget is spent."""
        work = self._elsewhere.measure_work(asked)
        return bool(self._elsewhere.fulfilling(asked)) if not work or self._budget.spend(work) else None

    def derive_classes(self, waiting: WaitingClass) -> tuple[WaitingClass, WaitingClass]:
        """A class of waiting jobs as it is in the old version and in the new one."""
        before, after = self._options
        if before.class_digest == after.class_digest:
            return waiting, waiting
        old, new = (replace(waiting, asked=derive_class_again(waiting.asked, each)) for each in self._options)
        return old, new

    @cached_property
    def _elsewhere(self) -> QueueSet:
        rest = [each for each in self._after.addresses if each not in self._changed]
        return _usable_queues(self._after, self.vo, rest)


def _usable_queues(config: Configuration, vo: str, queues: Iterable[QueueAddress]) -> QueueSet:
    """The queues that the VO may use; the others fulfil nothing."""
    usable = [each for each in queues if config.knows(each) and config.usable(each, vo)]
    return queue_set.some_queues(config, vo, usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAds:
    """The first jobs of the classes in both versions; see `job_conditions.JobAds`."""

    before: JobAds
    after: JobAds


def class_shifts(
    versions: VersionComparison, waiting: Iterable[WaitingClass], jobs: ComparedAds
) -> Iterator[ClassShift]:
    """The classes of a VO whose queues change."""
    for each in waiting:
        before, after = versions.derive_classes(each)
        shift = versions.compute_shift(
            job_conditions.waiting_conditions(after, jobs.after),
            job_conditions.waiting_conditions(before, jobs.before),
        )
        if shift is not None:
            yield ClassShift(waiting=each, shift=shift)


def pool_shifts(
    versions: VersionComparison, vo: str, pools: Mapping[str, str], waiting: Iterable[WaitingClass]
) -> Iterator[PoolShift]:
    """The pools of a VO (lower case) whose queues change; `pools` maps ids to original requirements, JSON."""
    jobs = Counter[str | None]()
    for each in waiting:
        jobs[each.asked.submit_pool] += each.jobs
    for pool_id, requirements in pools.items():
        asked = job_conditions.class_conditions(RequirementClass(vo=vo, cpu_time=0), requirements)
        shift = versions.compute_shift([part for part in asked if isinstance(part, RequirementCondition)])
        if shift is not None:
            yield PoolShift(pool_id=pool_id, vo=vo, waiting=jobs[pool_id], shift=shift)


_VOS: Final = "VOs"
#: Options that affect requirements, their evaluation, or what queues offer.
_COMPARED_BY: Final = frozenset({"jobdescription", "jobtypes", "pools"})
_SEGMENTS: Final = ("jobscheduling", "taskqueuecputimeintervals")

_Scope = tuple[str, ...]


class ChangedQueues:
    """The queues that the differences of a proposal can affect."""

    def __init__(self, proposal: Proposal) -> None:
        self._differences = proposal.differences
        self._within: defaultdict[_Scope, set[QueueAddress]] = defaultdict(set)
        for each in {*proposal.before.levels, *proposal.after.levels}:
            names = (each.site, each.ce, each.queue)
            for length in range(4):
                self._within[names[:length]].add(each)

    def from_differences(self, vo: str) -> frozenset[QueueAddress]:
        """The queues that can change for a VO, given in lower case."""
        return frozenset().union(*(self.queues_of(each.names, vo) for each in self._differences))

    def queues_of(self, names: tuple[str, ...], vo: str) -> frozenset[QueueAddress] | set[QueueAddress]:
        """The queues that a value at this path can change for a VO."""
        if names[0] == "Operations":
            for_vo = len(names) < 2 or names[1] == DEFAULTS or fold(names[1]) == vo
            option = tuple(map(fold, names[2:4]))
            compares = not option or option[0] in _COMPARED_BY or option == _SEGMENTS[: len(option)]
            return self._within[()] if for_vo and compares else frozenset()
        if names[:2] != SITES[: len(names)]:
            return self._within[()] if names[:2] == ("Resources", "Computing") else frozenset()
        depth = node_depth(names)
        if names[depth : depth + 1] == (_VOS,) and names[depth + 1 :] and fold(names[depth + 1]) != vo:
            return frozenset()
        return self._within.get(names[2:depth:2], frozenset())
