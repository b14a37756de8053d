"""Evaluate an expression for a resource, and find its parts that are not true.

Only `true` itself counts: undefined and Error are truthy integers in Python, but not true here.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import classad2

from requirements.classad.compiled import Program, read
from requirements.classad.syntax_tree import SourceText, attribute_key
from requirements.errors import InvalidInput
from requirements.record.record import Reason, ReasonKind
from requirements.values import Value, fold, format_value, lookup

#: Text for an attribute that the resource does not have.
ABSENT = "is absent"


def is_true(text: str, resource: Mapping[str, Value]) -> bool:
    """Whether the expression is `true` for the resource: not undefined, Error or a number."""
    known = _compile(text)
    return isinstance(known, Program) and known.value(resource) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Operands of the outermost `&&` that depend on the same attributes, or else the whole expression."""

    names: tuple[str, ...]  #: the attributes they depend on
    programs: Mapping[str, Program]  #: by text as written
    is_whole: bool  #: there is no `&&`: a number is then not true, unlike in an operand

    def failing(self, resource: Mapping[str, Value]) -> Iterator[tuple[str, object]]:
        """Yield text and value of each operand that is not true of the resource."""
        values = Program.values_of(self.programs.values(), self.names, resource)
        return (each for each in zip(self.programs, values, strict=True) if each[1] is not True)

    def has(self, text: str, resource: Mapping[str, Value]) -> str | None:
        """Format the resource's values of the attributes of an operand; None: it has no attributes."""
        seen = [(name, lookup(resource, name)) for name in self.programs[text].names]
        formatted = (
            f"{name} {ABSENT}" if value is None else f"{name} = {format_value(value)}" for name, value in seen
        )
        return "; ".join(formatted) or None


def failing_parts(text: str, resource: Mapping[str, Value]) -> tuple[Reason, ...]:
    """Return the operands of the outermost `&&` that are not true; empty if and only if the whole is true.

    A stored expression that can no longer be parsed is reported as an error, so that others continue.
    """
    known = _compile(text)
    if isinstance(known, str):
        return (make_reason(text, known, ReasonKind.ERROR),)
    if known.value(resource) is True:
        return ()
    # A smaller mapping: each group looks up its names again.
    resource = {name: value for name in known.names if (value := lookup(resource, name)) is not None}
    found = {
        part: make_reason(part, group.has(part, resource), _kind(value))
        for group in group_operands(text, frozenset(map(fold, resource)))
        for part, value in group.failing(resource)
    }
    return tuple(found[part] for part in dict.fromkeys(operands(text) or (text,)) if part in found)


@lru_cache(maxsize=64)
def group_operands(text: str, present: frozenset[str]) -> tuple[Operands, ...]:
    """Group the operands of the outermost `&&` by the attributes they depend on.

    `present` has the folded names that any resource has. Empty if the text can no longer be parsed.
    """
    known = _compile(text)
    if isinstance(known, str):
        return ()
    groups: defaultdict[frozenset[str], dict[str, Program]] = defaultdict(dict)
    for each in known.parts or (known,):
        groups[frozenset(attribute_key(name) for name in each.names if fold(name) in present)][each.text] = (
            each
        )
    return tuple(
        Operands(names=tuple(names), programs=programs, is_whole=not known.parts)
        for names, programs in groups.items()
    )


def number(text: str, resource: Mapping[str, Value]) -> float | None:
    """Evaluate an expression to a number; None: undefined, an error, or another type."""
    known = _compile(text)
    return None if isinstance(known, str) else as_rank(known.value(resource))


def as_rank(value: object) -> float | None:
    """Return a computed value if it is a finite number; booleans are not numbers."""
    is_number = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return value if is_number else None  # type: ignore[return-value]


def names(text: str) -> tuple[str, ...]:
    """Return the attributes of a resource in an expression; empty if it can no longer be parsed."""
    known = _compile(text)
    return () if isinstance(known, str) else known.names


def operands(text: str) -> tuple[str, ...]:
    """Return the operands of the outermost `&&`; empty if there is none, or if the text cannot be parsed."""
    known = _compile(text)
    return () if isinstance(known, str) else tuple(part.text for part in known.parts)


def make_reason(text: str, has: str | None, kind: ReasonKind) -> Reason:
    """Return the reason that a part of an expression, as written, gives with the resource's values."""
    return Reason(requirement="Requirements", wanted=text, has=has, kind=kind)


def _kind(value: object) -> ReasonKind:
    if value is classad2.Value.Error:
        return ReasonKind.ERROR
    return ReasonKind.UNDEFINED if value is classad2.Value.Undefined else ReasonKind.EXPRESSION


@lru_cache(maxsize=1024)
def _compile(text: str) -> Program | str:
    """Return the program of a text, or the message if it is invalid."""
    try:
        return read(SourceText(text=text, path="Requirements"))
    except InvalidInput as error:
        return str(error)
