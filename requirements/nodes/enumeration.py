"""Evaluation of an expression for all combinations of what the nodes of a queue may have.

Each operand of the outermost `&&` is evaluated by itself. Of many combinations only those are evaluated that
its parts distinguish: a comparison has few outcomes, however many values a node may have.

The work of one expression is limited by a budget at one queue and by one for all queues together. An operand
that exceeds it may be fulfilled or not.
"""

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import classad2

from requirements.classad.evaluation import Program
from requirements.classad.expression import Expression
from requirements.classad.syntax_tree import attribute_key
from requirements.classad.work import LargestSizes, Work
from requirements.nodes.node_attributes import Option
from requirements.nodes.node_parts import NodePart, as_set, count, spread
from requirements.nodes.operands import NodeOperand, ReadOperands, read_operands
from requirements.nodes.representatives import (
    OUTCOMES,
    NodeVariable,
    represent_compared,
    represent_listed,
)
from requirements.values import Value, fold, key, lookup

_log = logging.getLogger(__name__)

#: Work for one expression, in the units of `requirements.classad.work`: 50 ms.
MAX_WORK: Final = 500_000_000
#: Work for one expression at all queues together: 1 s.
MAX_TOTAL: Final = 20 * MAX_WORK
#: Work of each evaluation besides that of the expression, of which setting the attributes is the most.
_EVALUATION: Final = 30_000
#: Combinations that are all evaluated, without looking for those that an operand distinguishes.
_FEW: Final = 128


@dataclass(slots=True)
class TotalWork:
    """What is left of the work for one expression at many queues; each takes at most `MAX_WORK` of it."""

    left: int = MAX_TOTAL


def evaluate_operands(
    text: str,
    resource: Mapping[str, Value],
    options: Mapping[str, Sequence[Option] | None],
    total: TotalWork | None = None,
) -> Iterator[NodePart] | None:
    """Yield the operands that depend on the node; None: the queue does not fulfil the others.

    `options` has the values that nodes may have of the attributes in the expression; None: any, or none.
    `total` is reduced by what this queue takes of it.
    """
    # What all nodes have is like a parameter of the queue.
    alike = {name: known[0] for name, known in options.items() if known and len(known) == 1}
    resource = {**resource, **{name: value for name, value in alike.items() if value is not None}}
    listed = {attribute_key(name): known for name, known in options.items() if known and name not in alike}
    unknown = frozenset(attribute_key(name) for name, known in options.items() if known is None)
    operands = read_operands(text, frozenset(listed), unknown)
    if operands is None or any(each.value(resource) is not True for each in operands.of_queue):
        return None
    return _Enumeration(text, resource, operands, listed, total or TotalWork()).evaluate()


class _Enumeration:
    def __init__(
        self,
        text: str,
        resource: Mapping[str, Value],
        operands: ReadOperands,
        listed: Mapping[str, Sequence[Option]],
        total: TotalWork,
    ) -> None:
        self._text, self._resource, self._operands = text, resource, operands
        self._total, self._left = total, min(MAX_WORK, total.left)
        computed = [self._spend(*each, {}) for each in operands.list_computed()]
        variables = self._list_variables(listed) if all(computed) else ()
        self._variables = {each.name: each for each in variables}

    def evaluate(self) -> Iterator[NodePart]:
        """Yield the operands, those with few combinations first."""
        operands = [(each, self._find_variables(each)) for each in self._operands.of_nodes]
        for operand, variables in sorted(operands, key=lambda each: count(each[1])):
            yield self._evaluate(operand, variables)

    def _list_variables(self, listed: Mapping[str, Sequence[Option]]) -> Iterator[NodeVariable]:
        """Yield the variables of all operands."""
        for name in {attribute_key(name) for each in self._operands.of_nodes for name in each.names}:
            compared = self._operands.compared(name, self._resource)
            options = listed.get(name)
            yield NodeVariable(
                name=name,
                representatives=represent_listed(options) if options else represent_compared(compared),
                attribute=fold(name),
                is_listed=options is not None,
                literals=frozenset(map(key, compared.literals)),
            )
        for part in (part for each in self._operands.of_nodes for part in each.open_parts):
            item = part.find_item(self._resource)
            yield NodeVariable(
                name=part.name,
                representatives=OUTCOMES,
                attribute=None if part.attribute is None or item is None else fold(part.attribute),
                item=item,
            )

    def _find_variables(self, operand: NodeOperand) -> tuple[NodeVariable, ...]:
        names = sorted(set(map(attribute_key, operand.program.names)) & self._variables.keys())
        return tuple(self._variables[name] for name in names)

    def _evaluate(self, operand: NodeOperand, variables: tuple[NodeVariable, ...]) -> NodePart:
        part = (Expression(text=operand.program.text),)
        classes = [tuple(range(each.size)) for each in variables]
        if count(variables) > _FEW:
            classes = [self._classify(operand, each) for each in variables]
        options = {
            variable.name: [
                variable.representatives[each.index(number)].value for number in sorted(set(each))
            ]
            for variable, each in zip(variables, classes, strict=True)
        }
        if not self._spend(operand.program, operand.work, options):
            _warn_of_budget(self._text)
            return NodePart(requirements=part, variables=variables)
        good = as_set(value is True for value in operand.program.values(self._resource, options))
        return NodePart(requirements=part, variables=variables, good=spread(good, classes))

    def _classify(self, operand: NodeOperand, variable: NodeVariable) -> tuple[int, ...]:
        """Return for each representative the number of the class of those that no part distinguishes."""
        parts = operand.own_parts.get(variable.name, ())
        options = {variable.name: [each.value for each in variable.representatives]}
        if not parts or not all(self._spend(operand.program, operand.work, options) for _ in parts):
            return tuple(range(variable.size))
        programs = operand.compile_own_parts(variable.name)
        values = (map(_find_truth, program.values(self._resource, options)) for program in programs)
        numbers: dict[Hashable, int] = {}
        return tuple(numbers.setdefault(outcomes, len(numbers)) for outcomes in zip(*values, strict=True))

    def _spend(self, program: Program, work: Work, options: Mapping[str, Sequence[object]]) -> bool:
        """Whether the evaluation for all combinations is within the budget, which is reduced by it."""
        sizes, combinations = LargestSizes(), 1
        for name in program.names:
            values = options.get(attribute_key(name))
            combinations *= len(values) if values else 1
            for value in values or [lookup(self._resource, name)]:
                if isinstance(value, str | tuple):
                    sizes.add(name, value)
        needed = combinations * (sizes.evaluation_units(work) + _EVALUATION)
        self._left -= needed
        if self._left >= 0:
            self._total.left -= needed
        return self._left >= 0


def _find_truth(value: object) -> Hashable:
    """Return what `&&`, `||`, `!` and `?:`, and the whole expression, distinguish of a value."""
    if isinstance(value, bool) or value is classad2.Value.Undefined:
        return repr(value)
    return bool(value) if type(value) in (int, float) else "error"


@lru_cache(maxsize=1024)
def _warn_of_budget(text: str) -> None:
    """Once for each expression, as long as it is in the cache."""
    _log.warning(
        "too many combinations of what nodes may have: every node is checked, and the batch system gets no "
        "flags for it: %.300r",
        text,
    )
