"""Which queues fail a part of a demand, and what they have instead.

The evaluator is asked once for all queues that are alike, and the answer is remembered.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

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

#: Answers that are remembered; beyond that we start anew.
_REMEMBERED = 20_000

#: What is asked, as `Failure` has it: the requirement and what is wanted.
_Asked = tuple[str, str]
#: What queues have instead (None: nothing of that name), and which.
_Seen = list[tuple[str | None, int]]
_Reason = tuple[_Asked, str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetCondition:
    """Queues that fail one part of a demand."""

    part: JobCondition
    requirement: str
    wanted: str  #: what is asked, for a person
    queues: int


class UnmetConditions:
    """All failures of some queues, found when they are asked for."""

    def __init__(
        self, queues: Sequence[QueueView], columns: QueueColumns, declarations: Declarations
    ) -> None:
        self._queues = queues
        self._columns = columns
        self._declarations = declarations
        self._known: dict[object, tuple[UnmetCondition, ...]] = {}
        self._last_told: tuple[object, Mapping[_Asked, _Seen]] = (None, {})

    def __contains__(self, part: JobCondition) -> bool:
        """Whether it has been asked for."""
        return part.key in self._known

    def find(self, part: JobCondition) -> tuple[UnmetCondition, ...]:
        """The queues that fail a part; several answers for an expression of several operands."""
        found = self._known.get(part.key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[part.key] = tuple(self._find(part))
        return found

    def seen_values(self, failure: UnmetCondition) -> Iterator[tuple[str | None, int]]:
        """What the queues that fail have instead (None: nothing of that name), and which of them."""
        part = failure.part
        if isinstance(part, ClassCondition):
            for queue, mask in self._columns.refused_by_resource(part.kind.looks):
                if mask & failure.queues:
                    yield queue_columns.describe_queue(part.kind, self._queues[queue]), mask
            return
        yield from self._describe(part).get((failure.requirement, failure.wanted), ())
        if isinstance(part, RequirementCondition):
            yield from self._values_by_operand(part, failure)

    def _values_by_operand(
        self, part: RequirementCondition, failure: UnmetCondition
    ) -> Iterator[tuple[str | None, int]]:
        among = failure.queues & ~self._as_whole(part)
        for group in self._operands(part):
            if failure.wanted in group.programs:
                for queue, mask in self._columns.group_by_values(group.names):
                    if queues := mask & among:
                        yield group.has(failure.wanted, self._queues[queue].values), queues

    def describe(self, failure: UnmetCondition, queue: QueueView, has: str | None) -> str | None:
        """What a queue that fails has instead, for a person: what has expired is not just absent."""
        if not queue.expired or not isinstance(failure.part, RequirementCondition):
            return has
        for name in self._names(failure.part):
            if (value := queue.expired.get(fold(name))) is not None:
                said = f"expired, it was {format_value(value)}"
                has = said if has is None else "; ".join(_answer_with(has.split("; "), name, said))
        return has

    def _find(self, part: JobCondition) -> Iterator[UnmetCondition]:
        if isinstance(part, ClassCondition):
            queues = self._refusing(part)
            found = {(part.kind.requirement, part.kind.wanted(part.isolated)): queues} if queues else {}
        else:
            found = {asked: _all(seen) for asked, seen in self._describe(part).items()}
        if isinstance(part, RequirementCondition):
            for text, queues in self._find_by_operand(part):
                asked = "Requirements", text
                found[asked] = found.get(asked, 0) | queues
        for (requirement, wanted), queues in found.items():
            yield UnmetCondition(part=part, requirement=requirement, wanted=wanted, queues=queues)

    def _find_by_operand(self, part: RequirementCondition) -> Iterator[tuple[str, int]]:
        """Operands of an expression with queues that fail them, where no node decides of it."""
        among = ~self._as_whole(part)
        for group in self._operands(part):
            for queue, mask in self._columns.group_by_values(group.names):
                if queues := mask & among:
                    yield from ((text, queues) for text, _ in group.failing(self._queues[queue].values))

    def _operands(self, part: RequirementCondition) -> tuple[Operands, ...]:
        return evaluator.operands(part.asked, self._columns.present)

    def _as_whole(self, part: RequirementCondition) -> int:
        """The queues that are asked all of it at once: their nodes decide of it, or there are no operands."""
        if not self._operands(part):
            return (1 << len(self._queues)) - 1
        return self._columns.with_nodes(self._names(part))

    def _names(self, part: RequirementCondition) -> tuple[str, ...]:
        return evaluator.parameters(part.asked, self._declarations)

    def _refusing(self, part: ClassCondition) -> int:
        """The part of a column that refuses; in one of capacities that is its beginning."""
        column = self._columns.refused_by_resource(part.kind.looks)
        if part.kind in job_conditions.CAPACITIES:
            enough = bisect_left(column, 1, key=lambda each: int(not self._refused(part, each[0])))
            return _all(column[:enough])
        return _all(each for each in column if self._refused(part, each[0]))

    def _refused(self, part: ClassCondition, queue: int) -> bool:
        return job_conditions.is_refused(part, self._queues[queue].resource)

    def _describe(self, part: AdmissionCondition | RequirementCondition) -> Mapping[_Asked, _Seen]:
        """Reasons of a whole part; asked for again with every failure, those of the last part are kept."""
        key, found = self._last_told
        if key != part.key:
            found = defaultdict(list)
            reasons = self._misses(part) if isinstance(part, AdmissionCondition) else self._reasons(part)
            for asked, has, queues in reasons:
                found[asked].append((has, queues))
            self._last_told = (part.key, found)
        return found

    def _misses(self, part: AdmissionCondition) -> Iterator[_Reason]:
        """What queues ask of the job in vain."""
        for queue, mask in self._columns.group_by_admission():
            admission = self._queues[queue].admission
            for miss in () if admission is None else admission.misses(part.job):
                yield (miss.name, miss.wanted), miss.has or None, mask

    def _reasons(self, part: RequirementCondition) -> Iterator[_Reason]:
        among = self._as_whole(part)
        for queue, mask in self._columns.group_by_values(self._names(part)) if among else ():
            if queues := mask & among:
                offer = self._queues[queue]
                for why in evaluator.failing(part.asked, offer.values, self._declarations, offer.nodes):
                    yield (why.requirement, why.wanted), why.has, queues


def _all(masks: Iterable[tuple[object, int]]) -> int:
    """All queues of a column, or of what is seen."""
    return reduce(or_, (mask for _, mask in masks), 0)


def _answer_with(all_said: Iterable[str], name: str, said: str) -> Iterator[str]:
    """What a queue says of the names in an expression, with `said` for one of them that is absent."""
    return (f"{name} {said}" if each == f"{name} {evaluation.ABSENT}" else each for each in all_said)
