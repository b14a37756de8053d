"""Whether an expression is true of a resource, and which parts of it are not.

Only `true` itself counts: undefined and Error are truthy integers in Python, and not true here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import classad2

from requirements.errors import InvalidInput
from requirements.program import Program, read
from requirements.rules import ReasonKind
from requirements.source import Source
from requirements.values import Value, lookup, shown

#: What is told of an attribute that the resource does not have.
ABSENT = "is absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingPart:
    """A part of an expression that is not true, so that the whole is not."""

    text: str  #: the part as it was written
    has: str | None  #: what the resource says of the attributes in it
    kind: ReasonKind


def is_true(text: str, resource: Mapping[str, Value]) -> bool:
    """Whether the expression is true of the resource: not undefined, not Error, not a number."""
    known = _known(text)
    return isinstance(known, Program) and known.value(resource) is True


def failing_parts(text: str, resource: Mapping[str, Value]) -> tuple[FailingPart, ...]:
    """The operands of the outermost `&&` that are not true; empty if and only if the whole is true.

    A stored expression that no longer reads as one is an error that says so, since the others have to go on.
    """
    known = _known(text)
    if isinstance(known, str):
        return (FailingPart(text=text, has=known, kind=ReasonKind.ERROR),)
    whole = known.value(resource)
    if whole is True:
        return ()
    # Each part looks for its names again: there are fewer to look through.
    resource = {name: value for name in known.names if (value := lookup(resource, name)) is not None}
    values = [(part, part.value(resource)) for part in known.parts]
    failed = [(part, value) for part, value in values if value is not True] or [(known, whole)]
    return tuple(
        FailingPart(text=part.text, has=_has(part, resource), kind=_kind(value)) for part, value in failed
    )


def number(text: str, resource: Mapping[str, Value]) -> float | None:
    """The number that an expression is for a resource; None: undefined, an error, or something else."""
    known = _known(text)
    return None if isinstance(known, str) else as_rank(known.value(resource))


def as_rank(value: object) -> float | None:
    """What the library computed, if it is a number; true and false are none, and neither is infinity."""
    is_number = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return value if is_number else None  # type: ignore[return-value]


def names(text: str) -> tuple[str, ...]:
    """The attributes of a resource that an expression asks for; none if it no longer reads as one."""
    known = _known(text)
    return () if isinstance(known, str) else known.names


def operands(text: str) -> tuple[str, ...]:
    """What must all be true; none if the expression is one condition, or no longer reads as one."""
    known = _known(text)
    return () if isinstance(known, str) else tuple(part.text for part in known.parts)


def _kind(value: object) -> ReasonKind:
    if value is classad2.Value.Error:
        return ReasonKind.ERROR
    return ReasonKind.UNDEFINED if value is classad2.Value.Undefined else ReasonKind.EXPRESSION


def _has(part: Program, resource: Mapping[str, Value]) -> str | None:
    seen = [(name, lookup(resource, name)) for name in part.names]
    said = (f"{name} {ABSENT}" if value is None else f"{name} = {shown(value)}" for name, value in seen)
    return "; ".join(said) or None


@lru_cache(maxsize=1024)
def _known(text: str) -> Program | str:
    """The program of a text; what is wrong if it is none."""
    try:
        return read(Source(text=text, path="Requirements"))
    except InvalidInput as error:
        return str(error)
