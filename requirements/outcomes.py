"""What a part of an expression may turn out to be where not everything is known, as a set of outcomes.

Source: the three-valued logic of HTCondor's ClassAds, as `classad2` computes it (held by a test).
"""

from collections.abc import Iterable
from enum import StrEnum

import classad2

from requirements.syntax import Special


class Outcome(StrEnum):
    """A kind of value, as far as logic tells values apart."""

    TRUE = "true"
    FALSE = "false"
    UNDEFINED = "undefined"
    ERROR = "error"
    NONZERO = "nonzero"  #: a number that counts as true
    ZERO = "zero"  #: a number that counts as false
    OTHER = "other"  #: text, a list: an error in `&&`, `||`, `!` and as a condition


Outcomes = frozenset[Outcome]

ANYTHING: Outcomes = frozenset(Outcome)
LOGICAL: Outcomes = frozenset({Outcome.TRUE, Outcome.FALSE, Outcome.UNDEFINED, Outcome.ERROR})
_COUNTS_AS = {Outcome.NONZERO: Outcome.TRUE, Outcome.ZERO: Outcome.FALSE, Outcome.OTHER: Outcome.ERROR}
_NEGATED = {Outcome.TRUE: Outcome.FALSE, Outcome.FALSE: Outcome.TRUE}


class Care(StrEnum):
    """Which outcomes the surroundings of a part tell apart."""

    VALUE = "value"  #: all, and the values themselves
    TRUTH = "truth"  #: true, false, undefined and error; numbers count as true or false
    POSITIVE = "positive"  #: of these, false and undefined are the same: in `||`
    HOLDS = "holds"  #: only whether it counts as true: in an `&&` that nothing but `&&` is around
    WHOLE = "whole"  #: only whether it is `true` itself, which a number is not


def of_value(value: object) -> Outcome:
    """The outcome that a value of the library is."""
    if value is classad2.Value.Undefined:
        return Outcome.UNDEFINED
    if value is classad2.Value.Error:
        return Outcome.ERROR
    if isinstance(value, bool):
        return Outcome.TRUE if value else Outcome.FALSE
    if isinstance(value, int | float):
        return Outcome.NONZERO if value else Outcome.ZERO
    return Outcome.OTHER


def as_truth(outcome: Outcome) -> Outcome:
    """What an outcome counts as in `&&`, `||`, `!` and as a condition."""
    return _COUNTS_AS.get(outcome, outcome)


def told_apart(outcome: Outcome, care: Care) -> Outcome:
    """The one outcome that stands for all that the surroundings do not tell from it."""
    if care is Care.VALUE:
        return outcome
    if care is Care.WHOLE:
        return Outcome.TRUE if outcome is Outcome.TRUE else Outcome.FALSE
    truth = as_truth(outcome)
    if care is Care.HOLDS:
        return Outcome.TRUE if truth is Outcome.TRUE else Outcome.FALSE
    if care is Care.POSITIVE and truth is Outcome.UNDEFINED:
        return Outcome.FALSE
    return truth


def certain(outcomes: Iterable[Outcome], care: Care) -> bool | Special | None:
    """The constant that is as good as a part with these outcomes; None: there is none."""
    seen = {told_apart(outcome, care) for outcome in outcomes}
    only = seen.pop() if len(seen) == 1 else None
    return _CONSTANT.get(only) if only else None


_CONSTANT: dict[Outcome, bool | Special] = {
    Outcome.TRUE: True,
    Outcome.FALSE: False,
    Outcome.UNDEFINED: Special.UNDEFINED,
    Outcome.ERROR: Special.ERROR,
}


def negated(operand: Outcomes) -> Outcomes:
    """What `!x` may be."""
    return frozenset(_NEGATED.get(as_truth(each), as_truth(each)) for each in operand)


def both(left: Outcomes, right: Outcomes) -> Outcomes:
    """What `x && y` may be."""
    return frozenset(_joined(as_truth(one), as_truth(two), Outcome.FALSE) for one in left for two in right)


def either(left: Outcomes, right: Outcomes) -> Outcomes:
    """What `x || y` may be."""
    return frozenset(_joined(as_truth(one), as_truth(two), Outcome.TRUE) for one in left for two in right)


def _joined(left: Outcome, right: Outcome, deciding: Outcome) -> Outcome:
    if left in (deciding, Outcome.ERROR):
        return left
    if right in (deciding, Outcome.ERROR) or left is not Outcome.UNDEFINED:
        return right
    return left


def chosen(condition: Outcomes, then: Outcomes, otherwise: Outcomes) -> Outcomes:
    """What `condition ? then : otherwise` may be."""
    truths = {as_truth(each) for each in condition}
    kept = truths & {Outcome.UNDEFINED, Outcome.ERROR}
    return frozenset(
        kept
        | (then if Outcome.TRUE in truths else frozenset())
        | (otherwise if Outcome.FALSE in truths else frozenset())
    )
