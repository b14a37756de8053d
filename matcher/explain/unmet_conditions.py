"""The queues that fail a condition, with their values.

A condition is evaluated once per group of queues that are equal in what it reads; results are cached.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, or_
from typing import Final

from cs_config.cache import Cache
from cs_config.classes.queue_columns import QueueColumns
from cs_config.tree import glue
from matcher.conditions import COLUMNS, Condition
from matcher.explain.job_conditions import (
    AdmissionCondition,
    ClassCondition,
    JobCondition,
    RequirementCondition,
)
from matcher.explain.queue_views import QueueView
from requirements import evaluator
from requirements.classad import evaluation
from requirements.classad.evaluation import Operands
from requirements.column_index import SingleItem, Values
from requirements.values import Scalar, fold, format_value, lookup

#: Folded names that queues have from their addresses, which conditions of jobs see on demand only.
_OF_ADDRESS: Final = frozenset(map(fold, glue.OF_ADDRESS))
#: Folded names of places that no queue has as parameters: `Requirements` find none of them.
_OF_PLACES: Final = frozenset(map(fold, ("Site", "GridCE", "CE", "Queue")))
_BY_KEYWORD: Final = "name places by Site and GridCE beside Requirements"
_BY_ADDRESS: Final = f"{_BY_KEYWORD}, or set Pools/ByAddress"


def names_place(name: str) -> bool:
    """Whether a name is one of places, which conditions of jobs do not see, or only on demand."""
    return fold(name) in _OF_ADDRESS | _OF_PLACES


def advise_places(name: str) -> str:
    """What to do instead of naming a place by a name for which `names_place`."""
    return _BY_ADDRESS if fold(name) in _OF_ADDRESS else _BY_KEYWORD


#: Cached results: number, and their bytes for a VO.
_CACHED: Final = 20_000
MOST_BYTES: Final = 32 << 20
#: Requirement and demanded value, as in `UnmetCondition`.
_Wanted = tuple[str, str]
#: The queues' values (None: no such parameter), each with the queues that have it.
_SeenValues = list[tuple[str | None, int]]
_Reason = tuple[_Wanted, str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetCondition:
    """Queues that fail one condition of a demand."""

    part: JobCondition | None  #: None: the queues are closed to the VO, disabled or faulty
    requirement: str
    wanted: str  #: demanded value, as text for people
    queues: int


class UnmetConditions:
    """Unmet conditions of some queues, computed on demand."""

    def __init__(self, queues: QueueColumns[QueueView]) -> None:
        self._queues = queues
        self._cache: Cache[Hashable, tuple[UnmetCondition, ...]] = Cache(
            _CACHED, measure=_measure, most=MOST_BYTES
        )
        self._last_reasons: tuple[object, Mapping[_Wanted, _SeenValues]] = (None, {})

    def __contains__(self, part: JobCondition) -> bool:
        """Whether the result for this condition is cached."""
        return self._cache.find(part.key) is not None

    def find(self, part: JobCondition) -> tuple[UnmetCondition, ...]:
        """The queues that fail a condition; an expression has one result per failing operand."""
        found = self._cache.find(part.key)
        return self._cache.store(part.key, tuple(self._find(part))) if found is None else found

    def list_values(self, failure: UnmetCondition) -> Iterator[tuple[str | None, int]]:
        """The values of the failing queues (None: no such parameter), each with the queues that have it."""
        part = failure.part
        if isinstance(part, ClassCondition):
            for queue, mask in self._group_by_offer(part):
                if mask & failure.queues:
                    yield _describe_offer(part, queue), mask
        elif part is not None:
            yield from self._describe(part).get((failure.requirement, failure.wanted), ())
        if not isinstance(part, RequirementCondition):
            return
        among = failure.queues & ~self._evaluated_whole(part)
        for group in self._operands(part):
            if failure.wanted in group.programs:
                for queue, mask in self._queues.group_by_values(group.names):
                    if queues := mask & among:
                        yield group.has(failure.wanted, queue.values), queues

    def describe(self, failure: UnmetCondition, queue: QueueView, has: str | None) -> str | None:
        """The value of a failing queue, as text for people, with why it has none, or fails nevertheless."""
        if not isinstance(failure.part, RequirementCondition):
            return has
        lists = evaluation.names_of_lists(failure.wanted)
        for name in self._names(failure.part):
            entries = [] if has is None else has.split("; ")
            absent, value = f"{name} {evaluation.ABSENT}", queue.expired.get(fold(name))
            if value is not None:
                text = f"expired, it was {format_value(value)}"
                named = (f"{name} {text}" if each == absent else each for each in entries)
                has = "; ".join(named) or text
            elif names_place(name) and absent in entries:
                instead = advise_places(name)
                has = "; ".join(f"{each} ({instead})" if each == absent else each for each in entries)
            elif fold(name) in lists and isinstance(lookup(queue.values, name), Scalar):
                begins = f"{name} = "
                has = "; ".join(f"{e}, which is no list" if e.startswith(begins) else e for e in entries)
        return has

    def _find(self, part: JobCondition) -> Iterator[UnmetCondition]:
        if isinstance(part, ClassCondition):
            queues = self._find_refusing(part)
            found = {(part.demand.keyword, part.wanted): queues} if queues else {}
        else:
            found = {asked: _all(seen) for asked, seen in self._describe(part).items()}
        if isinstance(part, RequirementCondition):
            # The failing operands of an expression, where no node attribute is involved.
            among = ~self._evaluated_whole(part)
            for group in self._operands(part):
                for queue, mask in self._queues.group_by_values(group.names):
                    for text, _ in group.failing(queue.values) if mask & among else ():
                        wanted = "Requirements", text
                        found[wanted] = found.get(wanted, 0) | mask & among
        for (requirement, text), queues in found.items():
            yield UnmetCondition(part=part, requirement=requirement, wanted=text, queues=queues)

    def _operands(self, part: RequirementCondition) -> tuple[Operands, ...]:
        return evaluator.operands(part.asked, self._queues.present)

    def _evaluated_whole(self, part: RequirementCondition) -> int:
        """Queues for which the whole expression is evaluated: no operands, or attributes of nodes."""
        if not self._operands(part):
            return self._queues.everything
        return self._queues.with_nodes(self._names(part))

    def _names(self, part: RequirementCondition) -> tuple[str, ...]:
        return evaluator.parameters(part.asked, self._queues.declarations)

    def measure(self, part: JobCondition) -> int:
        """The number of groups of queues that a condition is evaluated for."""
        if isinstance(part, RequirementCondition):
            return len(self._queues.group_by_values(self._names(part)))
        if isinstance(part, AdmissionCondition):
            return len(self._group_by_admission())
        return 1 if part.condition.holds is None else len(self._group_by_offer(part))

    def _find_refusing(self, part: ClassCondition) -> int:
        """The queues that refuse a condition."""
        asked, condition = part.isolated, part.condition
        if condition.need is not None and condition.holds is None:
            return self._queues.column(*_capacity(condition)).below(condition.need(asked))
        single = SingleItem(asked, COLUMNS)
        groups = self._group_by_offer(part)
        return _all(each for each in groups if not condition.select(single, each[0].resource))

    def _group_by_offer(self, part: ClassCondition) -> list[tuple[QueueView, int]]:
        """Group by what a condition reads of the offer; where that is one capacity, the smallest first."""
        condition, place = part.condition, part.demand.shows
        if place is not None:
            return self._queues.group(place, attrgetter(place))
        if condition.holds is not None:
            names = (*filter(None, (condition.capacity,)), *condition.reads)
            read = attrgetter(*names)
            return self._queues.group(names, lambda queue: read(queue.offered))
        masks = self._queues.column(*_capacity(condition)).list_ordered()
        return [(self._queues.first(mask), mask) for mask in masks]

    def _group_by_admission(self) -> list[tuple[QueueView, int]]:
        return self._queues.group("admission", lambda queue: queue.admission and queue.admission.key)

    def _describe(self, part: AdmissionCondition | RequirementCondition) -> Mapping[_Wanted, _SeenValues]:
        """Reasons of a whole condition; the last ones are cached, since each failure reads them."""
        key, found = self._last_reasons
        if key != part.key:
            found = defaultdict(list)
            reasons = self._misses(part) if isinstance(part, AdmissionCondition) else self._reasons(part)
            for asked, has, queues in reasons:
                found[asked].append((has, queues))
            self._last_reasons = (part.key, found)
        return found

    def _misses(self, part: AdmissionCondition) -> Iterator[_Reason]:
        for queue, mask in self._group_by_admission():
            for why in () if queue.admission is None else queue.admission.failing(part.job):
                yield (why.requirement, why.wanted), why.has, mask

    def _reasons(self, part: RequirementCondition) -> Iterator[_Reason]:
        among = self._evaluated_whole(part)
        for queue, mask in self._queues.group_by_values(self._names(part)) if among else ():
            if queues := mask & among:
                for why in evaluator.failing(
                    part.asked, queue.values, self._queues.declarations, queue.nodes
                ):
                    yield (why.requirement, why.wanted), why.has, queues


def _measure(key: Hashable, found: Iterable[UnmetCondition]) -> int:
    """Bytes of a condition and of what it is divided into."""
    parts = sum(
        500 + len(each.requirement) + len(each.wanted) + each.queues.bit_length() // 8 for each in found
    )
    return 500 + 2 * len(str(key)) + parts


def _all(masks: Iterable[tuple[object, int]]) -> int:
    return reduce(or_, (mask for _, mask in masks), 0)


def _capacity(condition: Condition) -> tuple[Hashable, Values[QueueView]]:
    """The column of a capacity of the offers; none where it is not stated."""

    def read(queue: QueueView) -> tuple[float, ...]:
        capacity = getattr(queue.offered, condition.capacity)
        return () if capacity is None else (capacity,)

    return ("capacity", condition.name), read


def _describe_offer(part: ClassCondition, queue: QueueView) -> str | None:
    """The queue's value for a condition, as text for people; None: it states none."""
    condition, demand = part.condition, part.demand
    if demand.shows is not None:
        return str(getattr(queue, demand.shows))
    if demand.read_value is not None:
        return demand.read_value(queue)
    if condition.need is not None:
        value = getattr(queue.resource, condition.capacity)
    else:
        value = lookup(queue.values, demand.keyword.removesuffix("s"))
    return None if value is None else format_value(value)
