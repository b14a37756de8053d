"""`&&` and `||` of parts that were folded, without those that make no difference."""

from dataclasses import dataclass, replace

from requirements import outcomes
from requirements.constants import literal
from requirements.outcomes import ANYTHING, LOGICAL, Care, Outcome, Outcomes
from requirements.syntax import AND, OR, Chain, Node, Special, children

_OPERATOR = {AND: "&&", OR: "||"}
_NO_ERROR = LOGICAL - {Outcome.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an expression after folding."""

    node: Node
    outcomes: Outcomes  #: what it may be; at least what it can be


TRUE = Part(node=literal(True), outcomes=frozenset({Outcome.TRUE}))  # noqa: FBT003  # the constant itself
FALSE = Part(node=literal(False), outcomes=frozenset({Outcome.FALSE}))  # noqa: FBT003  # the constant itself


def conjunction(parts: list[Part]) -> Part:
    """`&&` where only its truth counts: free in its order, and false and error are the same."""
    if any(Outcome.TRUE not in {outcomes.as_truth(each) for each in part.outcomes} for part in parts):
        return FALSE
    kept = [part for part in parts if truth_of(part) is not True]
    flat = [
        replace(part, node=operand) if operand is part.node else Part(node=operand, outcomes=ANYTHING)
        for part in kept
        for operand in _operands(part.node, AND)
    ]
    return _joined(flat, AND) if flat else TRUE


def row(parts: list[Part], level: int, *, stop: bool) -> Part:
    """`&&` or `||` in its order; the operand that decides it (`stop`) or is an error ends it."""
    kept: list[Part] = []
    for part in parts:
        truth = truth_of(part)
        if truth is (not stop):
            continue
        kept.append(part)
        if truth is stop or _is_error(part):
            break
    if not kept:
        return FALSE if stop else TRUE
    harmless = all(_truths(part) <= _NO_ERROR for part in kept[:-1])
    if truth_of(kept[-1]) is stop and harmless:
        return TRUE if stop else FALSE
    return _joined(kept, level)


def _joined(parts: list[Part], level: int) -> Part:
    joined = outcomes.both if level == AND else outcomes.either
    may_be = parts[0].outcomes
    for part in parts[1:]:
        may_be = joined(may_be, part.outcomes)
    if len(parts) == 1:
        may_be = _truths(parts[0])
        if parts[0].outcomes <= LOGICAL:
            return parts[0]
        # A number counts as true, but is not `true`: `X && true` is not `X`.
        parts = [TRUE, *parts] if level == AND else [FALSE, *parts]
    rest = tuple((_OPERATOR[level], part.node) for part in parts[1:])
    return Part(node=Chain(level=level, first=parts[0].node, rest=rest, start=0, end=0), outcomes=may_be)


def _operands(node: Node, level: int) -> tuple[Node, ...]:
    return children(node) if isinstance(node, Chain) and node.level == level else (node,)


def _truths(part: Part) -> Outcomes:
    return frozenset(outcomes.as_truth(each) for each in part.outcomes)


def truth_of(part: Part) -> bool | None:
    """What a part certainly counts as; None: it may differ, or is neither."""
    known = outcomes.certain(part.outcomes, Care.TRUTH)
    return known if isinstance(known, bool) else None


def _is_error(part: Part) -> bool:
    return _truths(part) == {Outcome.ERROR}


def outcome_of(constant: bool | Special) -> Outcome:  # noqa: FBT001  # the constant itself
    """The outcome that a constant is."""
    if isinstance(constant, Special):
        return Outcome.UNDEFINED if constant is Special.UNDEFINED else Outcome.ERROR
    return Outcome.TRUE if constant else Outcome.FALSE
