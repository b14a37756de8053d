"""Partial evaluation of an expression: fold the parts that a queue decides, keep those that its nodes decide.

The library evaluates every part whose values are all known, and every part whose unknowns have few
combinations; only `&&`, `||`, `!` and `?:` are decomposed here. The order is changed only in the outermost
`&&`, and a part is dropped only where its value makes no difference, errors included.

Effort is limited by a budget, which is spent before a part is evaluated: few combinations of a long part take
as long as many of a short one, and a regular expression as long as hundreds of comparisons.

Source: gLite's forwarding to batch systems, which flattens and then forgets `||`, `!` and `?:`.

The possible outcomes of a part are a set of truth values. Source: the three-valued logic of HTCondor's
ClassAds, as `classad2` computes it (checked by a test).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import classad2

from requirements.classad import evaluation, normal_form
from requirements.classad.normal_form import literal
from requirements.classad.restrictions import is_regexp, resource_name
from requirements.classad.syntax_tree import (
    AND,
    COMPARISONS,
    LOGICAL_OPERATORS,
    OR,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Node,
    Special,
    Subscript,
    Unary,
    attribute_key,
    children,
    flatten,
)
from requirements.nodes.node_attributes import Option
from requirements.values import Value


class TruthValue(StrEnum):
    """Kind of a value, as far as logic distinguishes values."""

    TRUE = "true"
    FALSE = "false"
    UNDEFINED = "undefined"
    ERROR = "error"
    NONZERO = "nonzero"  #: a number that counts as true
    ZERO = "zero"  #: a number that counts as false
    OTHER = "other"  #: text, a list: an error in `&&`, `||`, `!` and as a condition


Outcomes = frozenset[TruthValue]

ANYTHING: Outcomes = frozenset(TruthValue)
LOGICAL: Outcomes = frozenset({TruthValue.TRUE, TruthValue.FALSE, TruthValue.UNDEFINED, TruthValue.ERROR})
_COUNTS_AS = {
    TruthValue.NONZERO: TruthValue.TRUE,
    TruthValue.ZERO: TruthValue.FALSE,
    TruthValue.OTHER: TruthValue.ERROR,
}
_NEGATED = {TruthValue.TRUE: TruthValue.FALSE, TruthValue.FALSE: TruthValue.TRUE}


class Care(StrEnum):
    """Outcomes that the context of a part distinguishes."""

    VALUE = "value"  #: all, and also the values
    TRUTH = "truth"  #: true, false, undefined and error; numbers count as true or false
    POSITIVE = "positive"  #: like TRUTH, but false and undefined are equivalent: in `||`
    HOLDS = "holds"  #: only whether it counts as true: in an `&&` with only `&&` around it
    WHOLE = "whole"  #: only whether it is `true` itself, which a number is not


def outcome_of_value(value: object) -> TruthValue:
    """Return the outcome of a library value."""
    if value is classad2.Value.Undefined:
        return TruthValue.UNDEFINED
    if value is classad2.Value.Error:
        return TruthValue.ERROR
    if isinstance(value, bool):
        return TruthValue.TRUE if value else TruthValue.FALSE
    if isinstance(value, int | float):
        return TruthValue.NONZERO if value else TruthValue.ZERO
    return TruthValue.OTHER


def as_truth(outcome: TruthValue) -> TruthValue:
    """Return the outcome as which a value counts in `&&`, `||`, `!` and as a condition."""
    return _COUNTS_AS.get(outcome, outcome)


def split_options(outcome: TruthValue, care: Care) -> TruthValue:
    """Return the representative of all outcomes that are equivalent in the context."""
    if care is Care.VALUE:
        return outcome
    if care is Care.WHOLE:
        return TruthValue.TRUE if outcome is TruthValue.TRUE else TruthValue.FALSE
    truth = as_truth(outcome)
    if care is Care.HOLDS:
        return TruthValue.TRUE if truth is TruthValue.TRUE else TruthValue.FALSE
    if care is Care.POSITIVE and truth is TruthValue.UNDEFINED:
        return TruthValue.FALSE
    return truth


def certain(outcomes: Iterable[TruthValue], care: Care) -> TruthValue | None:
    """Return the only outcome that counts, if `CONSTANTS` has it, so that it can replace the part."""
    seen = {split_options(outcome, care) for outcome in outcomes}
    only = seen.pop() if len(seen) == 1 else None
    return only if only in CONSTANTS else None


CONSTANTS: dict[TruthValue, bool | Special] = {
    TruthValue.TRUE: True,
    TruthValue.FALSE: False,
    TruthValue.UNDEFINED: Special.UNDEFINED,
    TruthValue.ERROR: Special.ERROR,
}


def negated(operand: Outcomes) -> Outcomes:
    """Return the outcomes of `!x`."""
    return frozenset(_NEGATED.get(as_truth(each), as_truth(each)) for each in operand)


def join_outcomes(left: Outcomes, right: Outcomes, level: int) -> Outcomes:
    """Return the outcomes of `x && y` or `x || y`."""
    deciding = TruthValue.FALSE if level == AND else TruthValue.TRUE
    return frozenset(_join_two(as_truth(one), as_truth(two), deciding) for one in left for two in right)


def _join_two(left: TruthValue, right: TruthValue, deciding: TruthValue) -> TruthValue:
    if left in (deciding, TruthValue.ERROR):
        return left
    if right in (deciding, TruthValue.ERROR) or left is not TruthValue.UNDEFINED:
        return right
    return left


def chosen(condition: Outcomes, then: Outcomes, otherwise: Outcomes) -> Outcomes:
    """Return the outcomes of `condition ? then : otherwise`."""
    truths = {as_truth(each) for each in condition}
    kept = truths & {TruthValue.UNDEFINED, TruthValue.ERROR}
    return frozenset(
        kept
        | (then if TruthValue.TRUE in truths else frozenset())
        | (otherwise if TruthValue.FALSE in truths else frozenset())
    )


_NO_ERROR = LOGICAL - {TruthValue.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedPart:
    """A part of an expression after partial evaluation."""

    node: Node
    outcomes: Outcomes  #: its possible outcomes, perhaps with impossible ones


TRUE = FoldedPart(node=literal(True), outcomes=frozenset({TruthValue.TRUE}))  # noqa: FBT003  # the constant itself
FALSE = FoldedPart(node=literal(False), outcomes=frozenset({TruthValue.FALSE}))  # noqa: FBT003  # the constant itself


def conjunction(parts: list[FoldedPart]) -> FoldedPart:
    """Join parts with `&&` where only truth counts: in any order; false and error are equivalent."""
    if any(TruthValue.TRUE not in {as_truth(each) for each in part.outcomes} for part in parts):
        return FALSE
    kept = [part for part in parts if truth_of(part) is not True]
    flat = [
        replace(part, node=operand) if operand is part.node else FoldedPart(node=operand, outcomes=ANYTHING)
        for part in kept
        for operand in flatten(part.node, AND)
    ]
    return _join_parts(flat, AND) if flat else TRUE


def fold_chain(parts: list[FoldedPart], level: int, *, stop: bool) -> FoldedPart:
    """Join parts with `&&` or `||` in order, up to the operand that decides it (`stop`) or is an error."""
    kept: list[FoldedPart] = []
    for part in parts:
        truth = truth_of(part)
        if truth is (not stop):
            continue
        kept.append(part)
        if truth is stop or _truths(part) == {TruthValue.ERROR}:
            break
    if not kept:
        return FALSE if stop else TRUE
    harmless = all(_truths(part) <= _NO_ERROR for part in kept[:-1])
    if truth_of(kept[-1]) is stop and harmless:
        return TRUE if stop else FALSE
    return _join_parts(kept, level)


def _join_parts(parts: list[FoldedPart], level: int) -> FoldedPart:
    may_be = parts[0].outcomes
    for part in parts[1:]:
        may_be = join_outcomes(may_be, part.outcomes, level)
    if len(parts) == 1:
        may_be = _truths(parts[0])
        if parts[0].outcomes <= LOGICAL:
            return parts[0]
        # A number counts as true, but is not `true`: `X && true` is not `X`.
        parts = [TRUE, *parts] if level == AND else [FALSE, *parts]
    rest = tuple((LOGICAL_OPERATORS[level], part.node) for part in parts[1:])
    return FoldedPart(node=Chain(level=level, first=parts[0].node, rest=rest), outcomes=may_be)


def _truths(part: FoldedPart) -> Outcomes:
    return frozenset(as_truth(each) for each in part.outcomes)


def truth_of(part: FoldedPart) -> bool | None:
    """Whether a partially evaluated part is certainly true or certainly false.

    None: its outcome is open, or certain but undefined or an error.
    """
    known = certain(part.outcomes, Care.TRUTH)
    return known is TruthValue.TRUE if known in (TruthValue.TRUE, TruthValue.FALSE) else None


#: Budget of one expression, in evaluations of an operator or a name: ten per microsecond.
MAX_EFFORT = 500_000

#: Cost of a pattern on a text of some thousand characters.
_REGEXP = 200
#: Cost of setting an attribute in the library's ad.
_NAME = 30
#: Units of work (`requirements.classad.work`) that cost as much as the evaluation of an operator.
_WORK = 1_000
#: Number of evaluations that cost as much as compiling the part.
_READING = 50


@dataclass(slots=True, kw_only=True)
class EvaluationBudget:
    """Remaining effort for one expression."""

    left: int = MAX_EFFORT
    _weights: dict[int, int] = field(default_factory=dict)  #: by id of a part of the expression

    def spend(self, node: Node, *, names: int, combinations: int, work: int = 0) -> bool:
        """Spend the effort of evaluating a part, if it is left, and return whether it was.

        `names` is the number of attributes that change between the combinations, `work` that of one
        evaluation (`evaluation.largest_work`). The part has to outlive this object.
        """
        effort = (combinations + _READING) * (self._weight(node) + names * _NAME)
        return self._spend(max(effort, combinations * work // _WORK))

    def spend_once(self, work: int) -> bool:
        """Spend the effort of the only evaluation of a part, if it is left, and return whether it was."""
        return self._spend(work // _WORK)

    def _spend(self, effort: int) -> bool:
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


#: Combinations of possible values that are evaluated for one part.
MAX_COMBINATIONS = 4_096


def folded(
    node: Node,
    resource: Mapping[str, Value],
    open_: Mapping[str, Sequence[Option] | None],
    *,
    effort: int = MAX_EFFORT,
) -> FoldedPart:
    """Return what remains of a checked expression at a queue; equivalent as far as only `true` counts.

    `open_` has the possible values on a node, by `attribute_key`; None: any value, or none. Parts that exceed
    the effort are kept.
    """
    return _Folding(resource=resource, open_=open_, effort=EvaluationBudget(left=effort)).fold(
        node, Care.WHOLE
    )


@dataclass(slots=True, kw_only=True)
class _Folding:
    resource: Mapping[str, Value]
    open_: Mapping[str, Sequence[Option] | None]
    effort: EvaluationBudget
    _names: dict[int, frozenset[str]] = field(default_factory=dict)  #: by id of a part of the expression

    def fold(self, node: Node, care: Care) -> FoldedPart:
        seen = self._try_all(node)
        if seen is None:
            return self._constant(self._decompose(node, care), care)
        value = _only(seen)
        if value is not None and care is Care.VALUE:
            return FoldedPart(node=value, outcomes=frozenset({outcome_of_value(seen[0])}))
        exact = frozenset(outcome_of_value(each) for each in seen)
        part = self._constant(FoldedPart(node=node, outcomes=exact), care)
        if part.node is not node or not self._open_names(node):
            return part
        inner = self._decompose(node, care)
        return self._constant(replace(inner, outcomes=_narrowed(inner.outcomes, exact, care)), care)

    def _constant(self, part: FoldedPart, care: Care) -> FoldedPart:
        outcome = certain(part.outcomes, care)
        if outcome is None:
            return part
        constant = normal_form.literal(CONSTANTS[outcome])
        return FoldedPart(node=constant, outcomes=frozenset({outcome}))

    def _open_names(self, node: Node) -> frozenset[str]:
        """Return the names in a part that depend on the node."""
        known = self._names.get(id(node))
        if known is None:
            if isinstance(node, Attribute):
                known = frozenset({attribute_key(resource_name(node) or "")} & self.open_.keys())
            else:
                known = frozenset[str]().union(*(self._open_names(child) for child in children(node)))
            self._names[id(node)] = known
        return known

    def _try_all(self, node: Node) -> list[object] | None:
        """Return the values of a part for all combinations; None: unknown, or too many."""
        options: dict[str, Sequence[Option]] = {}
        for name in sorted(self._open_names(node)):
            known = self.open_[name]
            if known is None:
                return None
            options[name] = known
        count = math.prod(len(each) for each in options.values())
        if count > MAX_COMBINATIONS:
            return None
        if not self._is_affordable(node, options, count):
            return None
        return list(evaluation.compile_node(node).values(self.resource, options))

    def _is_affordable(self, node: Node, options: Mapping[str, Sequence[Option]], count: int) -> bool:
        work = evaluation.largest_work(node, self.resource, options)
        # A part that does not depend on the node is evaluated only once.
        if not options:
            return self.effort.spend_once(work)
        return self.effort.spend(node, names=len(options), combinations=count, work=work)

    def _decompose(self, node: Node, care: Care) -> FoldedPart:
        match node:
            case Chain(level=level) if level == AND:
                return self._all(node, care)
            case Chain(level=level) if level == OR:
                return self._any(node, care)
            case Unary(operator="!", operand=operand):
                inner = self.fold(operand, Care.TRUTH)
                return FoldedPart(node=replace(node, operand=inner.node), outcomes=negated(inner.outcomes))
            case Conditional():
                return self._conditional(node, care)
            case _:
                is_comparison = isinstance(node, Chain) and node.level in COMPARISONS
                may_be = LOGICAL if is_comparison else ANYTHING
                return FoldedPart(node=self._with_values(node), outcomes=may_be)

    def _with_values(self, node: Node) -> Node:
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
        return self.fold(node, Care.VALUE).node

    def _all(self, node: Chain, care: Care) -> FoldedPart:
        operands = children(node)
        if care in (Care.WHOLE, Care.HOLDS):
            return conjunction([self.fold(each, Care.HOLDS) for each in operands])
        last = Care.POSITIVE if care is Care.POSITIVE else Care.TRUTH
        cares = [Care.TRUTH] * (len(operands) - 1) + [last]
        parts = [self.fold(each, how) for each, how in zip(operands, cares, strict=True)]
        return fold_chain(parts, AND, stop=False)

    def _any(self, node: Chain, care: Care) -> FoldedPart:
        operands = list(children(node))
        inner = Care.TRUTH if care in (Care.VALUE, Care.TRUTH) else Care.POSITIVE
        last: list[FoldedPart] = []
        if inner is Care.POSITIVE and care is not Care.POSITIVE:
            # Nothing is evaluated after the last operand: an error there is equivalent to false.
            while operands and not last:
                part = self.fold(operands.pop(), Care.HOLDS)
                last = [] if truth_of(part) is False else [part]
        parts = [self.fold(each, inner) for each in operands]
        return fold_chain(parts + last, OR, stop=True)

    def _conditional(self, node: Conditional, care: Care) -> FoldedPart:
        condition = self.fold(node.condition, Care.TRUTH)
        decided = truth_of(condition)
        if decided is not None:
            return self.fold(node.then if decided else node.otherwise, care)
        then, otherwise = self.fold(node.then, care), self.fold(node.otherwise, care)
        may_be = chosen(condition.outcomes, then.outcomes, otherwise.outcomes)
        if care in (Care.WHOLE, Care.HOLDS) and _counts_fully(then, otherwise, care):
            if truth_of(otherwise) is False:
                return conjunction([condition, then])
            if truth_of(then) is False:
                opposite = Unary(operator="!", operand=condition.node)
                negation = FoldedPart(node=opposite, outcomes=negated(condition.outcomes))
                return conjunction([negation, otherwise])
        whole = replace(node, condition=condition.node, then=then.node, otherwise=otherwise.node)
        return FoldedPart(node=whole, outcomes=may_be)


def _narrowed(may_be: Outcomes, exact: Outcomes, care: Care) -> Outcomes:
    """Restrict the outcomes of a folded part to those of the original part."""
    classes = {split_options(each, care) for each in exact}
    return frozenset(each for each in may_be if split_options(each, care) in classes)


def _counts_fully(then: FoldedPart, otherwise: FoldedPart, care: Care) -> bool:
    """Whether a number in an arm cannot become true by moving the arm into `&&`."""
    return care is Care.HOLDS or TruthValue.NONZERO not in then.outcomes | otherwise.outcomes


def _only(seen: list[object]) -> Node | None:
    """Return the only value of a part as a node; None: several values, or one that cannot be written."""
    first = seen[0]
    if any(type(each) is not type(first) or repr(each) != repr(first) for each in seen[1:]):
        return None
    return normal_form.literal_from(first)
