"""How much the evaluation of parts of one expression may take, counted before it is done.

A part is tried with everything that nodes may have; few combinations of a long part take as long as many of
a short one, and a regular expression takes as long as hundreds of comparisons.

Partial evaluation of an expression: what is known of a queue is folded away, what its nodes decide stays.

The library evaluates every part of which all is known, and every part whose unknowns have few
combinations; only `&&`, `||`, `!` and `?:` are taken apart here. Nothing is put in another order but in the
outermost `&&`, and a part is dropped only where its value can make no difference, errors included.

Source: gLite's forwarding to batch systems, which flattens and then forgets `||`, `!` and `?:`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from requirements.classad import compiled, constants
from requirements.classad.restrictions import is_regexp, resource_name
from requirements.classad.syntax_tree import (
    AND,
    OR,
    PRECEDENCE,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Node,
    Subscript,
    Unary,
    attribute_key,
    children,
)
from requirements.nodes import truth_values
from requirements.nodes.node_attributes import Option
from requirements.nodes.truth_values import (
    ANYTHING,
    LOGICAL,
    Care,
    FoldedPart,
    Outcomes,
    TruthValue,
    conjunction,
    fold_chain,
    outcome_of_constant,
    truth_of,
)
from requirements.values import Value

#: What one run over one expression may spend, in evaluations of an operator or a name: ten in a microsecond.
MAX_EFFORT = 500_000

#: In the same unit: a pattern over a text of some thousand characters.
_REGEXP = 200
#: Telling the library what an attribute is this time.
_NAME = 30
#: Evaluations that take as long as making a part ready for them.
_READING = 50


@dataclass(slots=True, kw_only=True)
class EvaluationBudget:
    """What is left to spend."""

    left: int = MAX_EFFORT
    _weights: dict[int, int] = field(default_factory=dict)  #: by id of a part of the expression

    def spend(self, node: Node, *, names: int, combinations: int) -> bool:
        """Whether a part may be tried; if it may, that is spent.

        Args:
            node: A part of the one expression, which has to outlive this.
            names: How many attributes change between combinations.
            combinations: How often it would be evaluated.
        """
        effort = (combinations + _READING) * (self._weight(node) + names * _NAME)
        if effort > self.left:
            return False
        self.left -= effort
        return True

    def _weight(self, node: Node) -> int:
        known = self._weights.get(id(node))
        if known is None:
            own = _REGEXP if is_regexp(node) else 1
            known = self._weights[id(node)] = own + sum(self._weight(each) for each in children(node))
        return known


#: Combinations of what nodes may have that are tried for one part.
MAX_COMBINATIONS = 4_096

_COMPARED = (PRECEDENCE["=="], PRECEDENCE["<"])


def folded(
    node: Node,
    resource: Mapping[str, Value],
    open_: Mapping[str, Sequence[Option] | None],
    *,
    effort: int = MAX_EFFORT,
) -> FoldedPart:
    """What remains of an expression at a queue; as good as the whole wherever only `true` counts.

    Args:
        node: The tree of an expression that passed `restrictions.check`.
        resource: What holds for every node.
        open_: By `attribute_key`, what a node may have; None: anything, or nothing.
        effort: The budget of the evaluation; what would take more stays open.
    """
    return _Folding(resource=resource, open_=open_, effort=EvaluationBudget(left=effort)).of(node, Care.WHOLE)


@dataclass(slots=True, kw_only=True)
class _Folding:
    """One run over one expression."""

    resource: Mapping[str, Value]
    open_: Mapping[str, Sequence[Option] | None]
    effort: EvaluationBudget
    _names: dict[int, frozenset[str]] = field(default_factory=dict)  #: by id of a part of the expression

    def of(self, node: Node, care: Care) -> FoldedPart:
        seen = self._tried(node)
        if seen is None:
            return self._constant(self._taken_apart(node, care), care)
        value = _only(seen)
        if value is not None and care is Care.VALUE:
            return FoldedPart(node=value, outcomes=frozenset({truth_values.outcome_of_value(seen[0])}))
        exact = frozenset(truth_values.outcome_of_value(each) for each in seen)
        part = self._constant(FoldedPart(node=node, outcomes=exact), care)
        if part.node is not node or not self._open_names(node):
            return part
        inner = self._taken_apart(node, care)
        return self._constant(replace(inner, outcomes=_narrowed(inner.outcomes, exact, care)), care)

    def _constant(self, part: FoldedPart, care: Care) -> FoldedPart:
        constant = truth_values.certain(part.outcomes, care)
        if constant is None:
            return part
        return FoldedPart(
            node=constants.literal(constant), outcomes=frozenset({outcome_of_constant(constant)})
        )

    def _open_names(self, node: Node) -> frozenset[str]:
        """The names in a part that its nodes decide."""
        known = self._names.get(id(node))
        if known is None:
            if isinstance(node, Attribute):
                known = frozenset({attribute_key(resource_name(node) or "")} & self.open_.keys())
            else:
                known = frozenset[str]().union(*(self._open_names(child) for child in children(node)))
            self._names[id(node)] = known
        return known

    def _tried(self, node: Node) -> list[object] | None:
        """The values that a part has over all combinations; None: not to be had, or too many."""
        options: dict[str, Sequence[Option]] = {}
        for name in sorted(self._open_names(node)):
            known = self.open_[name]
            if known is None:
                return None
            options[name] = known
        count = math.prod(len(each) for each in options.values())
        if count > MAX_COMBINATIONS:
            return None
        # What the nodes do not decide is tried once and for all.
        if options and not self.effort.spend(node, names=len(options), combinations=count):
            return None
        return list(compiled.compile_node(node).values(self.resource, options))

    def _taken_apart(self, node: Node, care: Care) -> FoldedPart:
        match node:
            case Chain(level=level) if level == AND:
                return self._all(node, care)
            case Chain(level=level) if level == OR:
                return self._any(node, care)
            case Unary(operator="!", operand=operand):
                inner = self.of(operand, Care.TRUTH)
                return FoldedPart(
                    node=replace(node, operand=inner.node), outcomes=truth_values.negated(inner.outcomes)
                )
            case Conditional():
                return self._conditional(node, care)
            case _:
                return FoldedPart(node=self._with_values(node), outcomes=_of_kind(node))

    def _with_values(self, node: Node) -> Node:
        """A part that asks for the values of the parts below."""
        match node:
            case Attribute():
                return node
            case Chain(first=first, rest=rest):
                return replace(
                    node,
                    first=self._value(first),
                    rest=tuple((operator, self._value(operand)) for operator, operand in rest),
                )
            case Unary(operand=operand):
                return replace(node, operand=self._value(operand))
            case Call(arguments=arguments):
                return replace(node, arguments=tuple(self._value(each) for each in arguments))
            case ListOf(items=items):
                return replace(node, items=tuple(self._value(each) for each in items))
            case Subscript(of=of, index=index):
                return replace(node, of=self._value(of), index=self._value(index))
            case _:
                return node

    def _value(self, node: Node) -> Node:
        return self.of(node, Care.VALUE).node

    def _all(self, node: Chain, care: Care) -> FoldedPart:
        operands = children(node)
        if care in (Care.WHOLE, Care.HOLDS):
            return conjunction([self.of(each, Care.HOLDS) for each in operands])
        last = Care.POSITIVE if care is Care.POSITIVE else Care.TRUTH
        cares = [Care.TRUTH] * (len(operands) - 1) + [last]
        parts = [self.of(each, how) for each, how in zip(operands, cares, strict=True)]
        return fold_chain(parts, AND, stop=False)

    def _any(self, node: Chain, care: Care) -> FoldedPart:
        operands = list(children(node))
        inner = Care.TRUTH if care in (Care.VALUE, Care.TRUTH) else Care.POSITIVE
        last: list[FoldedPart] = []
        if inner is Care.POSITIVE and care is not Care.POSITIVE:
            # Behind the last operand nothing is evaluated: an error there is as good as false.
            while operands and not last:
                part = self.of(operands.pop(), Care.HOLDS)
                last = [] if truth_of(part) is False else [part]
        parts = [self.of(each, inner) for each in operands]
        return fold_chain(parts + last, OR, stop=True)

    def _conditional(self, node: Conditional, care: Care) -> FoldedPart:
        condition = self.of(node.condition, Care.TRUTH)
        decided = truth_of(condition)
        if decided is not None:
            return self.of(node.then if decided else node.otherwise, care)
        then, otherwise = self.of(node.then, care), self.of(node.otherwise, care)
        may_be = truth_values.chosen(condition.outcomes, then.outcomes, otherwise.outcomes)
        if care in (Care.WHOLE, Care.HOLDS) and _counts_fully(then, otherwise, care):
            if truth_of(otherwise) is False:
                return conjunction([condition, then])
            if truth_of(then) is False:
                opposite = Unary(operator="!", operand=condition.node, start=0, end=0)
                negation = FoldedPart(node=opposite, outcomes=truth_values.negated(condition.outcomes))
                return conjunction([negation, otherwise])
        whole = replace(node, condition=condition.node, then=then.node, otherwise=otherwise.node)
        return FoldedPart(node=whole, outcomes=may_be)


def _narrowed(may_be: Outcomes, exact: Outcomes, care: Care) -> Outcomes:
    """What a folded part may be, by what the part before was in each case."""
    classes = {truth_values.split_options(each, care) for each in exact}
    return frozenset(each for each in may_be if truth_values.split_options(each, care) in classes)


def _counts_fully(then: FoldedPart, otherwise: FoldedPart, care: Care) -> bool:
    """Whether putting the arms into `&&` makes nothing true that was a number before."""
    return care is Care.HOLDS or TruthValue.NONZERO not in then.outcomes | otherwise.outcomes


def _of_kind(node: Node) -> Outcomes:
    return LOGICAL if isinstance(node, Chain) and node.level in _COMPARED else ANYTHING


def _only(seen: list[object]) -> Node | None:
    """The one value that a part has, written out; None: it has several, or one that cannot be written."""
    first = seen[0]
    if any(type(each) is not type(first) or repr(each) != repr(first) for each in seen[1:]):
        return None
    return constants.literal_from(first)
