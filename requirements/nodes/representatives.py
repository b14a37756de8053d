"""Representatives of what nodes may have: finitely many values, of which one stands for any other.

An attribute with listed values has these. Where the values are unknown, a requirement can only distinguish
them by the literals that it compares the attribute with: these, the numbers between and beyond, another text,
a list, true, false, and absence.
"""

import itertools
import math
import string
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import classad2

from requirements.record import Declaration, MatchRule, ValueKind
from requirements.values import MAX_INTEGER, Scalar, Value, as_number, exact, key, normal_number

_SWAP_CASE = str.maketrans(
    string.ascii_lowercase + string.ascii_uppercase, string.ascii_uppercase + string.ascii_lowercase
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Representative:
    """A value for the evaluation, and the values that it stands for."""

    value: object  #: a value of a node, None if it is absent, or the library's Error
    between: tuple[float, float] | None = None  #: stands for all numbers between these
    is_other: bool = False  #: stands for all texts, or all lists, without the literals


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVariable:
    """What differs between nodes: an attribute, or a part of an expression with an open outcome."""

    name: str  #: folded; of a part, one that no attribute of the expression has
    representatives: tuple[Representative, ...]
    attribute: str | None  #: folded; None: the outcome of a part, of which no flag says anything
    item: Scalar | None = None  #: the variable is whether the attribute, a list, has this item
    is_listed: bool = False  #: the representatives are all values that nodes may have
    literals: frozenset[Hashable] = frozenset()  #: keys of what an unknown attribute is compared with

    @property
    def size(self) -> int:
        """Number of the representatives."""
        return len(self.representatives)


@dataclass(slots=True)
class Comparisons:
    """What an unknown attribute is compared with in one expression."""

    literals: list[Scalar]
    is_exact: bool = False  #: also with `=?=` or `=!=`, which distinguish case and 2 from 2.0
    is_ordered: bool = False  #: also with `<` or the like


#: Outcomes of a part in `&&`, `||`, `!` and `?:`: a number counts as true or false there, a text as Error.
OUTCOMES = tuple(Representative(value=value) for value in (True, False, None, classad2.Value.Error))
_ALWAYS = (
    *(Representative(value=value) for value in (None, True, False)),
    Representative(value=(), is_other=True),
)


def represent_listed(options: Sequence[Value | None]) -> tuple[Representative, ...]:
    """Return the values that a queue lists."""
    return tuple(Representative(value=option) for option in options)


def represent_compared(compared: Comparisons) -> tuple[Representative, ...]:
    """Return the representatives of an unknown attribute that an expression compares with literals."""
    return (
        *_ALWAYS,
        *_numbers(compared.literals, is_exact=compared.is_exact),
        *_texts([each for each in compared.literals if isinstance(each, str)], compared),
    )


def _numbers(literals: Iterable[Scalar], *, is_exact: bool) -> Iterator[Representative]:
    """Yield the numbers, true as 1, and one between each two of them and beyond."""
    points = sorted({_point(each) for each in literals if not isinstance(each, str) and math.isfinite(each)})
    for low, high in itertools.pairwise((-math.inf, *points, math.inf)):
        if (inside := _find_between(low, high)) is not None:
            yield Representative(value=inside, between=(low, high))
    for point in points:
        yield Representative(value=point)
        if is_exact and isinstance(point, int):
            yield Representative(value=float(point))


def _point(literal: float) -> float:
    """Return a number as values of resources have it: large integers as reals."""
    return normal_number(
        int(literal) if abs(literal) <= MAX_INTEGER and literal == int(literal) else float(literal)
    )


def _find_between(low: float, high: float) -> float | None:
    """Return a finite number between two; None: there is none."""
    if math.isinf(low) and math.isinf(high):
        return 0
    if math.isinf(low):
        inside = max(high - max(1, abs(high)), -sys.float_info.max)
    elif math.isinf(high):
        inside = min(low + max(1, abs(low)), sys.float_info.max)
    else:
        inside = low / 2 + high / 2
    return inside if low < inside < high else None


def _texts(literals: Sequence[str], compared: Comparisons) -> Iterator[Representative]:
    texts = dict.fromkeys(literals)
    for text in texts:
        yield Representative(value=text)
        if compared.is_exact and (other := _find_other_case(text, texts)) is not None:
            yield Representative(value=other)
    if compared.is_ordered and texts:
        # Before all, and directly behind each.
        for text in ("", *(f"{text}\x01" for text in texts)):
            if text not in texts:
                yield Representative(value=text, is_other=True)
    else:
        yield Representative(value=_find_other(texts), is_other=True)


def _find_other_case(text: str, texts: Iterable[str]) -> str | None:
    """Return a text that differs in the case of its letters only; None: there is no other."""
    first, rest = text[:1], text[1:]
    other_first, other_rest = first.translate(_SWAP_CASE), rest.translate(_SWAP_CASE)
    variants = (other_first + other_rest, other_first + rest, first + other_rest)
    return next((each for each in variants if each not in texts), None)


def _find_other(texts: Iterable[str]) -> str:
    """Return a text that equals none, in any case."""
    other, taken = "another text", {text.lower() for text in texts}
    while other in taken:
        other += "."
    return other


def represent_required(
    entries: Sequence[tuple[Value, Declaration | None]], most: int
) -> tuple[Representative, ...] | None:
    """Return the representatives of an unknown attribute that entries of a record require; None: too many.

    More items of a list never hurt: so of the lists the smallest that fulfil all entries, and the largest
    that do not fulfil one, stand for all.
    """
    items = [required_items(wanted, declaration) for wanted, declaration in entries]
    smallest = [
        [each] if declaration and declaration.match is MatchRule.ALL and each else [(one,) for one in each]
        for each, (_, declaration) in zip(items, entries, strict=True)
    ]
    if math.prod(map(len, smallest)) > most:
        return None
    everything = _unique(itertools.chain.from_iterable(items))
    largest = [
        tuple(item for item in everything if key(item) not in missing)
        for choices in smallest
        for missing in _hitting(choices)
    ]
    lists = [_unique(itertools.chain.from_iterable(choice)) for choice in itertools.product(*smallest)]
    distinct = {exact(each): each for each in (*lists, *largest)}
    return (
        *_ALWAYS,
        *_numbers(everything, is_exact=False),
        *_texts([each for each in everything if isinstance(each, str)], Comparisons(literals=[])),
        *(Representative(value=each, is_other=True) for each in distinct.values() if each),
    )


def required_items(wanted: Value, declaration: Declaration | None) -> tuple[Scalar, ...]:
    """Return the values that an entry of a record requires, numbers written as text as numbers."""
    items = wanted if isinstance(wanted, tuple) else (wanted,)
    is_number = declaration is not None and declaration.kind is ValueKind.NUMBER
    return tuple(map(as_number, items)) if is_number else items


def _unique(items: Iterable[Scalar]) -> tuple[Scalar, ...]:
    return tuple({key(each): each for each in items}.values())


def _hitting(choices: Sequence[tuple[Scalar, ...]]) -> Iterator[frozenset[Hashable]]:
    """Yield the smallest sets of items without which no choice is complete."""
    if len(choices) == 1:
        yield from (frozenset({key(item)}) for item in choices[0])
    else:
        yield frozenset(key(item) for choice in choices for item in choice)
