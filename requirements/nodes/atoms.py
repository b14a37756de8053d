"""Statements about single attributes of a node, and their combination to a condition.

A condition is a list of alternatives, each a list of statements that must all hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from requirements.nodes.node_attributes import Option
from requirements.values import key

#: Alternatives of one condition; more are replaced by the statements they have in common.
MAX_ALTERNATIVES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLeast:
    """The node's number is at least `value`; true counts as 1, of several numbers one is enough."""

    name: str  #: folded
    value: float
    strict: bool = False  #: greater, not equal


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMost:
    """The node's number is at most `value`."""

    name: str  #: folded
    value: float
    strict: bool = False  #: less, not equal


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """The node has one of these values, perhaps among others; true means anything that counts as true."""

    name: str  #: folded
    options: tuple[Option, ...]
    listed: bool = False  #: the options are from the queue's list, so the node has exactly one
    among: bool = False  #: the node's value is a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """The node has the attribute, but not this value."""

    name: str  #: folded
    value: str | float
    among: bool = False  #: the node's value may be a list, or of another type


Statement = AtLeast | AtMost | OneOf | Lacks
Alternative = tuple[Statement, ...]
Condition = tuple[Alternative, ...]

ALWAYS: Condition = ((),)
NEVER: Condition = ()


def some(
    attribute: str, options: Sequence[Option], *, listed: bool = False, among: bool = False
) -> Condition:
    """Return the condition that a node has one of the options; `NEVER` without any."""
    statement = OneOf(name=attribute, options=tuple(options), listed=listed, among=among)
    return ((statement,),) if options else NEVER


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the disjunction of conditions; of too many alternatives, what they have in common."""
    found: dict[Alternative, None] = {}
    for each in conditions:
        found.update(dict.fromkeys(each))
    alternatives = _merged(list(found))
    if () in alternatives:
        return ALWAYS
    return (common(alternatives),) if len(alternatives) > MAX_ALTERNATIVES else tuple(alternatives)


def _merged(alternatives: list[Alternative]) -> list[Alternative]:
    """Merge alternatives about one attribute each: `X == 1 || X == 2`."""
    single: dict[str, OneOf] = {}
    others: list[Alternative] = []
    for each in alternatives:
        if len(each) == 1 and isinstance(each[0], OneOf):
            seen = single.get(each[0].name)
            single[each[0].name] = _united(seen, each[0]) if seen else each[0]
        else:
            others.append(each)
    return [(each,) for each in single.values()] + others


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Return the conjunction of conditions, weakened if it has too many alternatives."""
    whole = ALWAYS
    for each in conditions:
        left, right = sorted((whole, each), key=len)
        if len(left) * len(right) > MAX_ALTERNATIVES:
            right = (common(right),)
        both = (joined for one in left for two in right if (joined := _together(one, two)) is not None)
        whole = tuple(dict.fromkeys(both))
    return whole


def _together(one: Alternative, two: Alternative) -> Alternative | None:
    """Return the conjunction of two alternatives; None: they exclude each other."""
    joined_by_key: dict[tuple[object, ...], Statement] = {}
    for each in (*one, *two):
        place = _place(each)
        stronger = _stronger(joined_by_key[place], each) if place in joined_by_key else each
        if stronger is None:
            return None
        joined_by_key[place] = stronger
    return tuple(joined_by_key.values())


def _place(statement: Statement) -> tuple[object, ...]:
    """Return the key under which statements are merged into one."""
    if isinstance(statement, Lacks):
        return Lacks, statement.name, key(statement.value), statement.among
    if isinstance(statement, OneOf) and not statement.listed:
        # On a node with several values, two statements may be true of different values.
        return OneOf, statement.name, frozenset(map(repr, statement.options))
    return type(statement), statement.name


def _stronger(one: Statement, two: Statement) -> Statement | None:
    match one, two:
        case AtLeast(), AtLeast():
            return max(one, two, key=lambda each: (each.value, each.strict))
        case AtMost(), AtMost():
            return min(one, two, key=lambda each: (each.value, not each.strict))
        case OneOf(listed=True), OneOf():
            in_both = {repr(each) for each in two.options}
            options = tuple(each for each in one.options if repr(each) in in_both)
            return replace(one, options=options) if options else None
    return one


def _united(one: OneOf, two: OneOf) -> OneOf:
    options = {repr(each): each for each in (*one.options, *two.options)}
    return replace(
        one, options=tuple(options.values()), listed=one.listed and two.listed, among=one.among or two.among
    )


def common(alternatives: Sequence[Alternative]) -> Alternative:
    """Return the strongest statements that all alternatives have in common, by attribute."""
    weakest: dict[tuple[type[Statement], str], Statement] = {
        (type(each), each.name): each for each in reversed(alternatives[0])
    }
    for alternative in alternatives[1:]:
        for place, seen in list(weakest.items()):
            others = [each for each in alternative if (type(each), each.name) == place]
            weaker = _weaker(seen, others[0]) if others else None
            if weaker is None:
                del weakest[place]
            else:
                weakest[place] = weaker
    return tuple(weakest.values())


def _weaker(one: Statement, two: Statement) -> Statement | None:
    match one, two:
        case AtLeast(), AtLeast():
            return min(one, two, key=lambda each: (each.value, each.strict))
        case AtMost(), AtMost():
            return max(one, two, key=lambda each: (each.value, not each.strict))
        case OneOf(), OneOf():
            return _united(one, two)
    return one if one == two else None
