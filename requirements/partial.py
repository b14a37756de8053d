"""Partial evaluation of an expression: what is known of a queue is folded away, what its nodes decide stays.

The library evaluates every part of which all is known, and every part whose unknowns have few
combinations; only `&&`, `||`, `!` and `?:` are taken apart here. Nothing is put in another order but in the
outermost `&&`, and a part is dropped only where its value can make no difference, errors included.

Source: gLite's forwarding to batch systems, which flattens and then forgets `||`, `!` and `?:`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import classad2

from requirements import outcomes, program
from requirements.constants import literal
from requirements.nodes import Option
from requirements.outcomes import ANYTHING, LOGICAL, Care, Outcome, Outcomes
from requirements.rendering import attribute_key
from requirements.restrictions import resource_name
from requirements.syntax import (
    AND,
    OR,
    PRECEDENCE,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    Special,
    Subscript,
    Unary,
    children,
)
from requirements.values import MAX_INTEGER, Value

#: Combinations of what nodes may have that are tried for one part, and for one expression in all.
MAX_COMBINATIONS = 4_096
MAX_TRIES = 2 * MAX_COMBINATIONS

_COMPARED = (PRECEDENCE["=="], PRECEDENCE["<"])
_OPERATOR = {AND: "&&", OR: "||"}
_NO_ERROR = LOGICAL - {Outcome.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an expression after folding."""

    node: Node
    outcomes: Outcomes  #: what it may be; at least what it can be


_TRUE = Part(node=literal(True), outcomes=frozenset({Outcome.TRUE}))  # noqa: FBT003  # the constant itself
_FALSE = Part(node=literal(False), outcomes=frozenset({Outcome.FALSE}))  # noqa: FBT003  # the constant itself


def folded(node: Node, resource: Mapping[str, Value], open_: Mapping[str, Sequence[Option] | None]) -> Part:
    """What remains of an expression at a queue; as good as the whole wherever only `true` counts.

    Args:
        node: The tree of an expression that passed `restrictions.check`.
        resource: What holds for every node.
        open_: By `attribute_key`, what a node may have; None: anything, or nothing.
    """
    return _Folding(resource=resource, open_=open_).of(node, Care.WHOLE)


@dataclass(slots=True, kw_only=True)
class _Folding:
    """One run over one expression."""

    resource: Mapping[str, Value]
    open_: Mapping[str, Sequence[Option] | None]
    tries: int = MAX_TRIES
    _names: dict[int, frozenset[str]] = field(default_factory=dict)  #: by id of a part of the expression

    def of(self, node: Node, care: Care) -> Part:
        seen = self._tried(node)
        if seen is None:
            return self._constant(self._taken_apart(node, care), care)
        value = _written(seen)
        if value is not None and care is Care.VALUE:
            return Part(node=value, outcomes=frozenset({outcomes.of_value(seen[0])}))
        exact = frozenset(outcomes.of_value(each) for each in seen)
        part = self._constant(Part(node=node, outcomes=exact), care)
        if part.node is not node or not self._open_names(node):
            return part
        inner = self._taken_apart(node, care)
        return self._constant(replace(inner, outcomes=_narrowed(inner.outcomes, exact, care)), care)

    def _constant(self, part: Part, care: Care) -> Part:
        constant = outcomes.certain(part.outcomes, care)
        if constant is None:
            return part
        return Part(node=literal(constant), outcomes=frozenset({_outcome(constant)}))

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
        if count > min(MAX_COMBINATIONS, self.tries):
            return None
        self.tries -= count - 1
        return list(program.of_node(node).values(self.resource, options))

    def _taken_apart(self, node: Node, care: Care) -> Part:
        match node:
            case Chain(level=level) if level == AND:
                return self._all(node, care)
            case Chain(level=level) if level == OR:
                return self._any(node, care)
            case Unary(operator="!", operand=operand):
                inner = self.of(operand, Care.TRUTH)
                return Part(node=replace(node, operand=inner.node), outcomes=outcomes.negated(inner.outcomes))
            case Conditional():
                return self._conditional(node, care)
            case _:
                return Part(node=self._with_values(node), outcomes=_of_kind(node))

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

    def _all(self, node: Chain, care: Care) -> Part:
        operands = children(node)
        if care in (Care.WHOLE, Care.HOLDS):
            return _conjunction([self.of(each, Care.HOLDS) for each in operands])
        last = Care.POSITIVE if care is Care.POSITIVE else Care.TRUTH
        cares = [Care.TRUTH] * (len(operands) - 1) + [last]
        parts = [self.of(each, how) for each, how in zip(operands, cares, strict=True)]
        return _chain(parts, AND, stop=False)

    def _any(self, node: Chain, care: Care) -> Part:
        operands = list(children(node))
        inner = Care.TRUTH if care in (Care.VALUE, Care.TRUTH) else Care.POSITIVE
        last: list[Part] = []
        if inner is Care.POSITIVE and care is not Care.POSITIVE:
            # Behind the last operand nothing is evaluated: an error there is as good as false.
            while operands and not last:
                part = self.of(operands.pop(), Care.HOLDS)
                last = [] if _truth(part) is False else [part]
        parts = [self.of(each, inner) for each in operands]
        return _chain(parts + last, OR, stop=True)

    def _conditional(self, node: Conditional, care: Care) -> Part:
        condition = self.of(node.condition, Care.TRUTH)
        decided = _truth(condition)
        if decided is not None:
            return self.of(node.then if decided else node.otherwise, care)
        then, otherwise = self.of(node.then, care), self.of(node.otherwise, care)
        may_be = outcomes.chosen(condition.outcomes, then.outcomes, otherwise.outcomes)
        if care in (Care.WHOLE, Care.HOLDS) and _counts_fully(then, otherwise, care):
            if _truth(otherwise) is False:
                return _conjunction([condition, then])
            if _truth(then) is False:
                opposite = Unary(operator="!", operand=condition.node, start=0, end=0)
                negation = Part(node=opposite, outcomes=outcomes.negated(condition.outcomes))
                return _conjunction([negation, otherwise])
        whole = replace(node, condition=condition.node, then=then.node, otherwise=otherwise.node)
        return Part(node=whole, outcomes=may_be)


def _narrowed(may_be: Outcomes, exact: Outcomes, care: Care) -> Outcomes:
    """What a folded part may be, by what the part before was in each case."""
    classes = {outcomes.told_apart(each, care) for each in exact}
    return frozenset(each for each in may_be if outcomes.told_apart(each, care) in classes)


def _counts_fully(then: Part, otherwise: Part, care: Care) -> bool:
    """Whether putting the arms into `&&` makes nothing true that was a number before."""
    return care is Care.HOLDS or Outcome.NONZERO not in then.outcomes | otherwise.outcomes


def _conjunction(parts: list[Part]) -> Part:
    """`&&` where only its truth counts: free in its order, and false and error are the same."""
    if any(Outcome.TRUE not in {outcomes.as_truth(each) for each in part.outcomes} for part in parts):
        return _FALSE
    kept = [part for part in parts if _truth(part) is not True]
    flat = [
        replace(part, node=operand) if operand is part.node else Part(node=operand, outcomes=ANYTHING)
        for part in kept
        for operand in _operands(part.node, AND)
    ]
    return _row(flat, AND) if flat else _TRUE


def _chain(parts: list[Part], level: int, *, stop: bool) -> Part:
    """`&&` or `||` in its order; the operand that decides it (`stop`) or is an error ends it."""
    row: list[Part] = []
    for part in parts:
        truth = _truth(part)
        if truth is (not stop):
            continue
        row.append(part)
        if truth is stop or _is_error(part):
            break
    if not row:
        return _FALSE if stop else _TRUE
    harmless = all(_truths(part) <= _NO_ERROR for part in row[:-1])
    if _truth(row[-1]) is stop and harmless:
        return _TRUE if stop else _FALSE
    return _row(row, level)


def _row(parts: list[Part], level: int) -> Part:
    joined = outcomes.both if level == AND else outcomes.either
    may_be = parts[0].outcomes
    for part in parts[1:]:
        may_be = joined(may_be, part.outcomes)
    if len(parts) == 1:
        may_be = _truths(parts[0])
        if parts[0].outcomes <= LOGICAL:
            return parts[0]
        # A number counts as true, but is not `true`: `X && true` is not `X`.
        parts = [_TRUE, *parts] if level == AND else [_FALSE, *parts]
    rest = tuple((_OPERATOR[level], part.node) for part in parts[1:])
    return Part(node=Chain(level=level, first=parts[0].node, rest=rest, start=0, end=0), outcomes=may_be)


def _operands(node: Node, level: int) -> tuple[Node, ...]:
    return children(node) if isinstance(node, Chain) and node.level == level else (node,)


def _truths(part: Part) -> Outcomes:
    return frozenset(outcomes.as_truth(each) for each in part.outcomes)


def _truth(part: Part) -> bool | None:
    """What a part certainly counts as; None: it may differ, or is neither."""
    known = outcomes.certain(part.outcomes, Care.TRUTH)
    return known if isinstance(known, bool) else None


def _is_error(part: Part) -> bool:
    return _truths(part) == {Outcome.ERROR}


def _outcome(constant: bool | Special) -> Outcome:  # noqa: FBT001  # the constant itself
    if isinstance(constant, Special):
        return Outcome.UNDEFINED if constant is Special.UNDEFINED else Outcome.ERROR
    return Outcome.TRUE if constant else Outcome.FALSE


def _of_kind(node: Node) -> Outcomes:
    return LOGICAL if isinstance(node, Chain) and node.level in _COMPARED else ANYTHING


def _written(seen: list[object]) -> Node | None:
    """The one value that a part has, written out; None: it has several, or one that cannot be written."""
    first = seen[0]
    if any(type(each) is not type(first) or repr(each) != repr(first) for each in seen[1:]):
        return None
    return _as_node(first)


def _as_node(value: object) -> Node | None:
    if value is classad2.Value.Undefined:
        return literal(Special.UNDEFINED)
    if value is classad2.Value.Error:
        return literal(Special.ERROR)
    if isinstance(value, list):
        items = [_as_node(item) for item in value]
        written = tuple(item for item in items if item is not None)
        return ListOf(items=written, start=0, end=0) if len(written) == len(items) else None
    if isinstance(value, str):
        return Literal(value=value, start=0, end=0)
    if not isinstance(value, int | float):
        return None
    fits = math.isfinite(value) if isinstance(value, float) else abs(value) <= MAX_INTEGER
    return literal(value) if fits else None
