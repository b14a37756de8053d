"""Parts of requirements that depend on the node, with the combinations of node values that fulfil them.

A set of combinations is an integer, with a bit for each of them; the last variable changes first.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from requirements.classad.expression import Expression
from requirements.nodes.representatives import NodeVariable
from requirements.record import Record

#: Combinations of joined parts; parts that have more together stay apart.
MAX_JOINED: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """A part of requirements that depends on the node, or a join of such parts."""

    requirements: tuple[Record | Expression, ...]
    variables: tuple[NodeVariable, ...]  #: sorted by name
    good: int | None = None  #: the combinations that fulfil it; None: too many to know

    @property
    def everything(self) -> int:
        """The set of all combinations."""
        return (1 << count(self.variables)) - 1

    @property
    def relevant(self) -> tuple[NodeVariable, ...]:
        """The variables that make a difference."""
        good = self.good
        if good is None:
            return self.variables
        found = []
        for place, variable in enumerate(self.variables):
            width, first = count(self.variables[place + 1 :]), self.select(variable, [0])
            slices_ = (good >> width * position & first for position in range(variable.size))
            if any(each != good & first for each in slices_):
                found.append(variable)
        return tuple(found)

    def select(self, variable: NodeVariable, chosen: Iterable[int]) -> int:
        """Return the combinations in which a variable has one of the representatives, given by position."""
        place = self.variables.index(variable)
        width = count(self.variables[place + 1 :])
        block = sum(((1 << width) - 1) << width * position for position in chosen)
        return _repeat(block, width * variable.size, count(self.variables[:place]))


def count(variables: Iterable[NodeVariable]) -> int:
    """Return the number of combinations of variables."""
    return math.prod(variable.size for variable in variables)


def as_set(bits: Iterable[bool]) -> int:
    """Return the set of the combinations, in their order, for which a bit is true."""
    return int("".join("1" if bit else "0" for bit in bits)[::-1], 2)


def slices(good: int, width: int, size: int) -> Iterator[int]:
    """Yield what a set has of the other variables, `width` combinations, for each value of the first."""
    for position in range(size):
        yield good >> width * position & (1 << width) - 1


def spread(good: int, classes: Sequence[Sequence[int]]) -> int:
    """Return a set of combinations of classes as one of representatives.

    `classes` has for each variable, and for each of its representatives, the number of the class.
    """
    if not classes:
        return good
    first, *rest = classes
    inner = [
        spread(each, rest)
        for each in slices(good, math.prod(len(set(each)) for each in rest), len(set(first)))
    ]
    width = math.prod(map(len, rest))
    return sum(inner[number] << width * position for position, number in enumerate(first))


def join_parts(parts: Iterable[NodePart]) -> tuple[NodePart, ...]:
    """Join the parts that have variables in common, without those that every node fulfils."""
    joined: list[NodePart] = []
    for part in parts:
        if part.good is not None and part.good == part.everything:
            continue
        apart, whole = [], part
        for other in joined:
            if (both := _join(other, whole)) is None:
                apart.append(other)
            else:
                whole = both
        joined = [*apart, whole]
    return tuple(joined)


def _join(one: NodePart, two: NodePart) -> NodePart | None:
    """Return the part that is fulfilled where both are; None: they are independent, or too many together."""
    distinct = {each.name: each for each in (*one.variables, *two.variables)}
    if one.good is None or two.good is None or len(distinct) == len(one.variables) + len(two.variables):
        return None
    variables = tuple(distinct[name] for name in sorted(distinct))
    if count(variables) > MAX_JOINED:
        return None
    return NodePart(
        requirements=one.requirements + two.requirements,
        variables=variables,
        good=_expand(one.good, one.variables, variables) & _expand(two.good, two.variables, variables),
    )


def _expand(good: int, own: Sequence[NodeVariable], variables: Sequence[NodeVariable]) -> int:
    """Return the combinations of more variables, of which the own ones, in the same order, are in a set."""
    if not own:
        return (1 << count(variables)) - 1 if good else 0
    first, *rest = variables
    width = count(rest)
    if first.name != own[0].name:
        return _repeat(_expand(good, own, rest), width, first.size)
    inner = (_expand(each, own[1:], rest) for each in slices(good, count(own[1:]), first.size))
    return sum(each << width * position for position, each in enumerate(inner))


def _repeat(block: int, width: int, times: int) -> int:
    return block * (((1 << width * times) - 1) // ((1 << width) - 1)) if times > 1 else block
