"""Which queues fail a part of a demand, and what they have instead.

The evaluator is asked once for all queues that are alike, and the answer is remembered.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from matcher import parts, queue_views
from matcher.columns import Columns
from matcher.parts import Application, Condition, Part, Requirement
from matcher.queue_views import QueueView
from requirements import evaluation, evaluator
from requirements.declarations import Declarations
from requirements.evaluation import Operands
from requirements.values import fold, shown

#: Answers that are remembered; beyond that we start anew.
_REMEMBERED = 20_000

#: What is asked, as `Failure` has it: the requirement and what is wanted.
_Asked = tuple[str, str]
#: What queues have instead (None: nothing of that name), and which.
_Seen = list[tuple[str | None, int]]
_Reason = tuple[_Asked, str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Queues that fail one part of a demand."""

    part: Part
    requirement: str
    wanted: str  #: what is asked, for a person
    queues: int


class Failures:
    """All failures of some queues, found when they are asked for."""

    def __init__(self, queues: Sequence[QueueView], columns: Columns, declarations: Declarations) -> None:
        self._queues = queues
        self._columns = columns
        self._declarations = declarations
        self._known: dict[object, tuple[Failure, ...]] = {}
        self._last_told: tuple[object, Mapping[_Asked, _Seen]] = (None, {})

    def __contains__(self, part: Part) -> bool:
        """Whether it has been asked for."""
        return part.key in self._known

    def of(self, part: Part) -> tuple[Failure, ...]:
        """The queues that fail a part; several answers for an expression of several operands."""
        found = self._known.get(part.key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[part.key] = tuple(self._of(part))
        return found

    def seen(self, failure: Failure) -> Iterator[tuple[str | None, int]]:
        """What the queues that fail have instead (None: nothing of that name), and which of them."""
        part = failure.part
        if isinstance(part, Condition):
            for queue, mask in self._columns.by_resource(part.kind.looks):
                if mask & failure.queues:
                    yield queue_views.shows(part.kind, self._queues[queue]), mask
            return
        yield from self._told(part).get((failure.requirement, failure.wanted), ())
        if isinstance(part, Requirement):
            yield from self._seen_by_operand(part, failure)

    def _seen_by_operand(self, part: Requirement, failure: Failure) -> Iterator[tuple[str | None, int]]:
        among = failure.queues & ~self._as_whole(part)
        for group in self._operands(part):
            if failure.wanted in group.programs:
                for queue, mask in self._columns.by_values(group.names):
                    if queues := mask & among:
                        yield group.has(failure.wanted, self._queues[queue].values), queues

    def told(self, failure: Failure, queue: QueueView, has: str | None) -> str | None:
        """What a queue that fails has instead, for a person: what has expired is not just absent."""
        if not queue.expired or not isinstance(failure.part, Requirement):
            return has
        for name in self._names(failure.part):
            if (value := queue.expired.get(fold(name))) is not None:
                said = f"expired, it was {shown(value)}"
                has = said if has is None else "; ".join(_saying(has.split("; "), name, said))
        return has

    def _of(self, part: Part) -> Iterator[Failure]:
        if isinstance(part, Condition):
            queues = self._refusing(part)
            found = {(part.kind.requirement, part.kind.wanted(part.isolated)): queues} if queues else {}
        else:
            found = {asked: _all(seen) for asked, seen in self._told(part).items()}
        if isinstance(part, Requirement):
            for text, queues in self._by_operand(part):
                asked = "Requirements", text
                found[asked] = found.get(asked, 0) | queues
        for (requirement, wanted), queues in found.items():
            yield Failure(part=part, requirement=requirement, wanted=wanted, queues=queues)

    def _by_operand(self, part: Requirement) -> Iterator[tuple[str, int]]:
        """Operands of an expression with queues that fail them, where no node decides of it."""
        among = ~self._as_whole(part)
        for group in self._operands(part):
            for queue, mask in self._columns.by_values(group.names):
                if queues := mask & among:
                    yield from ((text, queues) for text, _ in group.failing(self._queues[queue].values))

    def _operands(self, part: Requirement) -> tuple[Operands, ...]:
        return evaluator.operands(part.asked, self._columns.present)

    def _as_whole(self, part: Requirement) -> int:
        """The queues that are asked all of it at once: their nodes decide of it, or there are no operands."""
        if not self._operands(part):
            return (1 << len(self._queues)) - 1
        return self._columns.with_nodes(self._names(part))

    def _names(self, part: Requirement) -> tuple[str, ...]:
        return evaluator.parameters(part.asked, self._declarations)

    def _refusing(self, part: Condition) -> int:
        """The part of a column that refuses; in one of capacities that is its beginning."""
        column = self._columns.by_resource(part.kind.looks)
        if part.kind in parts.CAPACITIES:
            enough = bisect_left(column, 1, key=lambda each: int(not self._refused(part, each[0])))
            return _all(column[:enough])
        return _all(each for each in column if self._refused(part, each[0]))

    def _refused(self, part: Condition, queue: int) -> bool:
        return parts.refused(part, self._queues[queue].resource)

    def _told(self, part: Application | Requirement) -> Mapping[_Asked, _Seen]:
        """Reasons of a whole part; asked for again with every failure, those of the last part are kept."""
        key, found = self._last_told
        if key != part.key:
            found = defaultdict(list)
            reasons = self._misses(part) if isinstance(part, Application) else self._reasons(part)
            for asked, has, queues in reasons:
                found[asked].append((has, queues))
            self._last_told = (part.key, found)
        return found

    def _misses(self, part: Application) -> Iterator[_Reason]:
        """What queues ask of the job in vain."""
        for queue, mask in self._columns.by_admission():
            admission = self._queues[queue].admission
            for miss in () if admission is None else admission.misses(part.job):
                yield (miss.name, miss.wanted), miss.has or None, mask

    def _reasons(self, part: Requirement) -> Iterator[_Reason]:
        among = self._as_whole(part)
        for queue, mask in self._columns.by_values(self._names(part)) if among else ():
            if queues := mask & among:
                offer = self._queues[queue]
                for why in evaluator.failing(part.asked, offer.values, self._declarations, offer.nodes):
                    yield (why.requirement, why.wanted), why.has, queues


def _all(masks: Iterable[tuple[object, int]]) -> int:
    """All queues of a column, or of what is seen."""
    return reduce(or_, (mask for _, mask in masks), 0)


def _saying(all_said: Iterable[str], name: str, said: str) -> Iterator[str]:
    """What a queue says of the names in an expression, with `said` for one of them that is absent."""
    return (f"{name} {said}" if each == f"{name} {evaluation.ABSENT}" else each for each in all_said)
