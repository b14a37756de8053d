"""Queues, or classes of them, by the values of their parameters; and those that requirements match.

Thousands of queues have few distinct values: requirements are evaluated once for each. They are split into
parts that are evaluated independently; the result of each part is a cached set, and most pools share their
parts. A queue matches either surely, or only at some of its nodes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Final, Protocol, TypeVar

from cs_config.cache import Cache
from requirements import evaluator
from requirements.bitset import Renumbering
from requirements.canonical import Requirements
from requirements.classad.evaluation import Operands
from requirements.column_index import ColumnIndex
from requirements.nodes.enumeration import TotalWork
from requirements.nodes.node_attributes import NodeAttributes
from requirements.record import Declarations, Record
from requirements.values import Value, exact, fold, lookup


class ComparedQueue(Protocol):
    """A queue, or several that are alike."""

    @property
    def values(self) -> Mapping[str, Value]:
        """Parameters that are equal on all nodes, including GLUE names."""

    @property
    def nodes(self) -> NodeAttributes:
        """Attributes that differ between its nodes."""


Queue = TypeVar("Queue", bound=ComparedQueue)


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleSets:
    """The queues of which some node may fulfil requirements, as sets of slots."""

    eligible: int
    undecided: int = 0  #: subset of `eligible`: queues of which only some nodes may

    def renumbered(self, numbers: Renumbering) -> "EligibleSets":
        """The same sets by the new numbers of the queues."""
        return EligibleSets(eligible=numbers.apply(self.eligible), undecided=numbers.apply(self.undecided))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementPart:
    """One part of the requirements, evaluated independently, for queues whose nodes are all alike."""

    key: Hashable  #: equal for equal conditions
    names: tuple[str, ...]  #: folded; the only attributes of a queue that the part depends on
    holds: Callable[[Mapping[str, Value]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementQuestion:
    """Requirements, split into parts."""

    whole: Requirements
    names: frozenset[str]  #: folded
    parts: tuple[RequirementPart, ...]


#: Bytes of cached results of parts, of one VO.
MOST_BYTES: Final = 64 << 20


def _measure(key: Hashable, found: int) -> int:
    return 500 + 2 * len(str(key)) + found.bit_length() // 8


class QueueColumns(ColumnIndex[Queue]):
    """An index of queues by the values of their parameters."""

    def __init__(
        self,
        queues: Mapping[int, Queue],
        declarations: Declarations,
        *,
        stated: Callable[[Queue], Mapping[str, Value]],
        implied: frozenset[str] = frozenset(),
        cached: int,
    ) -> None:
        """Index queues by slot.

        `stated`: the parameters of a queue, without those that every queue has among its `values`, whose
        folded names are `implied`. `cached`: number of cached results of parts.
        """
        super().__init__(queues)
        self.declarations = declarations
        self._stated = stated
        self._implied = implied
        #: By the keys of parts.
        self._results: Cache[Hashable, int] = Cache(cached, measure=_measure, most=MOST_BYTES)

    @cached_property
    def present(self) -> frozenset[str]:
        """Every name, folded, that some queue has."""
        return self._implied.union(self._spellings, self._node_values)

    def group_by_values(self, names: Iterable[str]) -> list[tuple[Queue, int]]:
        """Group by the values of these names; a name that no queue has distinguishes none."""
        folded = tuple(sorted(self.present.intersection(map(fold, names))))
        return self.group(
            ("values", folded), lambda queue: tuple(self._comparable_value(queue, name) for name in folded)
        )

    def list_values(self, name: str) -> Iterator[tuple[Value, int]]:
        """The values of a parameter, for all nodes or some, each with the queues that have it."""
        for queue, mask in self.group_by_values((name,)):
            value = None if name in queue.nodes else self._value(queue, fold(name))
            for each in (value, *(queue.nodes.options(name) or ())):
                if each is not None:
                    yield each, mask

    def with_nodes(self, names: Iterable[str]) -> int:
        """The queues whose nodes differ in one of these names."""
        if not self._node_values:
            return 0
        return reduce(or_, (self._node_values.get(fold(name), 0) for name in names), 0)

    def question(self, requirements: Requirements) -> RequirementQuestion:
        """Split requirements into parts; valid for every index with the same names and declarations."""
        names = evaluator.parameters(requirements, self.declarations)
        groups = evaluator.operands(requirements, self.present)
        if isinstance(requirements, Record):
            parts = [self._whole(each, ("record", repr(each))) for each in evaluator.parts(requirements)]
        elif len(groups) == 1:  # faster than operand by operand
            parts = [self._whole(requirements, ("expression", groups[0].key))]
        else:
            parts = [_operands(each) for each in groups]
        return RequirementQuestion(whole=requirements, names=frozenset(map(fold, names)), parts=tuple(parts))

    def resolve(self, question: RequirementQuestion) -> EligibleSets:
        """The queues that fulfil the requirements."""
        of_nodes = self.with_nodes(question.names)
        # Requirements that cannot be read match no queue.
        eligible = self.everything & ~of_nodes if question.parts else 0
        for part in question.parts:
            if not eligible:
                break
            eligible &= self._fulfilling(part)
        return self._with_nodes(question, eligible, of_nodes) if of_nodes else EligibleSets(eligible=eligible)

    def _with_nodes(self, question: RequirementQuestion, eligible: int, of_nodes: int) -> EligibleSets:
        """Add the queues whose nodes differ in the attributes used.

        Their parts cannot be evaluated independently.
        """
        undecided, total = 0, TotalWork()
        for first, alike in self.group_by_values(question.names):
            if alike & of_nodes:
                found = evaluator.decide_at_queue(
                    question.whole, first.values, self.declarations, first.nodes, total
                )
                eligible |= alike if found.eligible else 0
                undecided |= alike if found.undecided else 0
        return EligibleSets(eligible=eligible, undecided=undecided)

    def _fulfilling(self, part: RequirementPart) -> int:
        known = self._results.find(part.key)
        if known is None:
            groups = self.group_by_values(part.names)
            found = reduce(or_, (alike for first, alike in groups if part.holds(first.values)), 0)
            known = self._results.store(part.key, found)
        return known

    def _whole(self, requirements: Requirements, key: Hashable) -> RequirementPart:
        declarations = self.declarations
        return RequirementPart(
            key=key,
            names=tuple(map(fold, evaluator.parameters(requirements, declarations))),
            holds=lambda values: evaluator.eligible(requirements, values, declarations),
        )

    def _comparable_value(self, queue: Queue, name: str) -> Hashable:
        """A comparable form of the queue's value, or of the values that its nodes may have."""
        if queue.nodes and name in queue.nodes:
            options = queue.nodes.options(name)
            return "nodes", queue.nodes.describe(name) if options is None else tuple(map(exact, options))
        return exact(self._value(queue, name))

    def _value(self, queue: Queue, name: str) -> Value | None:
        """The queue's value of a folded name; None: absent."""
        if name in self._implied:
            return lookup(queue.values, name)
        stated = self._stated(queue)
        spelled = (stated.get(each) for each in self._spellings.get(name, ()))
        return next((value for value in spelled if value is not None), None)

    @cached_property
    def _spellings(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in sorted(set[str]().union(*map(self._stated, self.items.values()))):
            found.setdefault(fold(name), []).append(name)
        return found

    @cached_property
    def _node_values(self) -> Mapping[str, int]:
        """The folded names of node attributes, with the queues that have them."""
        return self.column("nodes", lambda queue: set(map(fold, queue.nodes.names))).masks


def _operands(operands: Operands) -> RequirementPart:
    return RequirementPart(
        key=("expression", operands.key),
        names=tuple(map(fold, operands.names)),
        holds=lambda values: next(operands.failing(values), None) is None,
    )
