"""Possible outcomes of a partially known expression, as sets of truth values.

Source: the three-valued logic of HTCondor's ClassAds, as `classad2` computes it (checked by a test).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import classad2

from requirements.classad.normal_form import literal
from requirements.classad.syntax_tree import AND, LOGICAL_OPERATORS, Chain, Node, Special, flatten


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
