"""The queues that fail a condition, and their values.

The evaluator runs once for each group of equal queues; results are cached.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from cs_config.cache import Cache
from matcher.explain import job_conditions, queue_columns
from matcher.explain.job_conditions import (
    AdmissionCondition,
    ClassCondition,
    JobCondition,
    RequirementCondition,
)
from matcher.explain.queue_columns import QueueColumns, QueueView
from requirements import evaluator
from requirements.classad import evaluation
from requirements.classad.evaluation import Operands
from requirements.record.declarations import Declarations
from requirements.values import fold, format_value

#: Cached results.
_CACHED = 20_000

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

    def __init__(
        self, queues: Sequence[QueueView], columns: QueueColumns, declarations: Declarations
    ) -> None:
        self._queues = queues
        self._columns = columns
        self._declarations = declarations
        self._cache: Cache[Hashable, tuple[UnmetCondition, ...]] = Cache(_CACHED)
        self._last_reasons: tuple[object, Mapping[_Wanted, _SeenValues]] = (None, {})

    def __contains__(self, part: JobCondition) -> bool:
        """Whether the result for this condition is cached."""
        return self._cache.find(part.key) is not None

    def find(self, part: JobCondition) -> tuple[UnmetCondition, ...]:
        """The queues that fail a condition; an expression has one result per failing operand."""
        return self._cache.get(part.key, lambda: tuple(self._find(part)))

    def list_values(self, failure: UnmetCondition) -> Iterator[tuple[str | None, int]]:
        """The values of the failing queues (None: no such parameter), each with the queues that have it."""
        part = failure.part
        if isinstance(part, ClassCondition):
            for queue, mask in self._columns.refused_by_resource(part.kind.resource_fields):
                if mask & failure.queues:
                    yield queue_columns.describe_queue(part.kind, self._queues[queue]), mask
        elif part is not None:
            yield from self._describe(part).get((failure.requirement, failure.wanted), ())
        if not isinstance(part, RequirementCondition):
            return
        among = failure.queues & ~self._evaluated_whole(part)
        for group in self._operands(part):
            if failure.wanted in group.programs:
                for queue, mask in self._columns.group_by_values(group.names):
                    if queues := mask & among:
                        yield group.has(failure.wanted, self._queues[queue].values), queues

    def describe(self, failure: UnmetCondition, queue: QueueView, has: str | None) -> str | None:
        """The value of a failing queue, as text for people; an expired value is reported as such."""
        if not queue.expired or not isinstance(failure.part, RequirementCondition):
            return has
        for name in self._names(failure.part):
            if (value := queue.expired.get(fold(name))) is not None:
                text, absent = f"expired, it was {format_value(value)}", f"{name} {evaluation.ABSENT}"
                entries = [] if has is None else has.split("; ")
                named = (f"{name} {text}" if each == absent else each for each in entries)
                has = "; ".join(named) or text
        return has

    def _find(self, part: JobCondition) -> Iterator[UnmetCondition]:
        if isinstance(part, ClassCondition):
            queues = self._find_refusing(part)
            found = {(part.kind.requirement, part.wanted): queues} if queues else {}
        else:
            found = {asked: _all(seen) for asked, seen in self._describe(part).items()}
        if isinstance(part, RequirementCondition):
            # The failing operands of an expression, where no node attribute is involved.
            among = ~self._evaluated_whole(part)
            for group in self._operands(part):
                for queue, mask in self._columns.group_by_values(group.names):
                    for text, _ in group.failing(self._queues[queue].values) if mask & among else ():
                        wanted = "Requirements", text
                        found[wanted] = found.get(wanted, 0) | mask & among
        for (requirement, text), queues in found.items():
            yield UnmetCondition(part=part, requirement=requirement, wanted=text, queues=queues)

    def _operands(self, part: RequirementCondition) -> tuple[Operands, ...]:
        return evaluator.operands(part.asked, self._columns.present)

    def _evaluated_whole(self, part: RequirementCondition) -> int:
        """Queues for which the whole expression is evaluated: no operands, or attributes of nodes."""
        if not self._operands(part):
            return (1 << len(self._queues)) - 1
        return self._columns.with_nodes(self._names(part))

    def _names(self, part: RequirementCondition) -> tuple[str, ...]:
        return evaluator.parameters(part.asked, self._declarations)

    def _find_refusing(self, part: ClassCondition) -> int:
        """The queues that refuse a condition; in a sorted column of capacities they come first."""
        column = self._columns.refused_by_resource(part.kind.resource_fields)
        if part.kind in job_conditions.CAPACITIES:
            enough = bisect_left(column, 1, key=lambda each: int(not self._refused(part, each[0])))
            return _all(column[:enough])
        return _all(each for each in column if self._refused(part, each[0]))

    def _refused(self, part: ClassCondition, queue: int) -> bool:
        return job_conditions.is_refused(part, self._queues[queue].resource)

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
        for queue, mask in self._columns.group_by_admission():
            admission = self._queues[queue].admission
            for why in () if admission is None else admission.failing(part.job):
                yield (why.requirement, why.wanted), why.has, mask

    def _reasons(self, part: RequirementCondition) -> Iterator[_Reason]:
        among = self._evaluated_whole(part)
        for queue, mask in self._columns.group_by_values(self._names(part)) if among else ():
            if queues := mask & among:
                offer = self._queues[queue]
                for why in evaluator.failing(part.asked, offer.values, self._declarations, offer.nodes):
                    yield (why.requirement, why.wanted), why.has, queues


def _all(masks: Iterable[tuple[object, int]]) -> int:
    return reduce(or_, (mask for _, mask in masks), 0)
