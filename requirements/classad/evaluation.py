"""Whether an expression is true of a resource, and which parts of it are not.

Only `true` itself counts: undefined and Error are truthy integers in Python, and not true here.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import classad2

from requirements.classad.compiled import Program, read
from requirements.classad.source_text import SourceText
from requirements.classad.syntax_tree import attribute_key
from requirements.errors import InvalidInput
from requirements.record.rules import ReasonKind
from requirements.values import Value, fold, format_value, lookup

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
    known = _compile(text)
    return isinstance(known, Program) and known.value(resource) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Operands of the outermost `&&` to which the same attributes matter; without it, all that is asked."""

    names: tuple[str, ...]  #: the attributes of a resource that matter
    programs: Mapping[str, Program]  #: by their texts as written
    is_whole: bool  #: there is no `&&`: a number is not true then, which it may be as an operand

    def failing(self, resource: Mapping[str, Value]) -> Iterator[tuple[str, object]]:
        """Those that are not true of the resource, as they were written, with what each is instead."""
        values = Program.values_of(self.programs.values(), self.names, resource)
        return (each for each in zip(self.programs, values, strict=True) if each[1] is not True)

    def has(self, text: str, resource: Mapping[str, Value]) -> str | None:
        """What the resource says of the attributes of an operand, for a person; None: it asks for none."""
        seen = [(name, lookup(resource, name)) for name in self.programs[text].names]
        said = (
            f"{name} {ABSENT}" if value is None else f"{name} = {format_value(value)}" for name, value in seen
        )
        return "; ".join(said) or None


def failing_parts(text: str, resource: Mapping[str, Value]) -> tuple[FailingPart, ...]:
    """The operands of the outermost `&&` that are not true; empty if and only if the whole is true.

    A stored expression that no longer reads as one is an error that says so, since the others have to go on.
    """
    known = _compile(text)
    if isinstance(known, str):
        return (FailingPart(text=text, has=known, kind=ReasonKind.ERROR),)
    if known.value(resource) is True:
        return ()
    # Each group looks for its names again: there are fewer to look through.
    resource = {name: value for name in known.names if (value := lookup(resource, name)) is not None}
    found = {
        part: FailingPart(text=part, has=group.has(part, resource), kind=_kind(value))
        for group in group_operands(text, frozenset(map(fold, resource)))
        for part, value in group.failing(resource)
    }
    return tuple(found[part] for part in dict.fromkeys(operands(text) or (text,)) if part in found)


@lru_cache(maxsize=64)
def group_operands(text: str, present: frozenset[str]) -> tuple[Operands, ...]:
    """All operands of the outermost `&&`, those together to which the same attributes matter.

    Args:
        text: The expression; one that no longer reads as one has none.
        present: Folded names that a resource may have; what else is asked for is absent.
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
    """The number that an expression is for a resource; None: undefined, an error, or something else."""
    known = _compile(text)
    return None if isinstance(known, str) else as_rank(known.value(resource))


def as_rank(value: object) -> float | None:
    """What the library computed, if it is a number; true and false are none, and neither is infinity."""
    is_number = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return value if is_number else None  # type: ignore[return-value]


def names(text: str) -> tuple[str, ...]:
    """The attributes of a resource that an expression asks for; none if it no longer reads as one."""
    known = _compile(text)
    return () if isinstance(known, str) else known.names


def operands(text: str) -> tuple[str, ...]:
    """What must all be true; none if the expression is one condition, or no longer reads as one."""
    known = _compile(text)
    return () if isinstance(known, str) else tuple(part.text for part in known.parts)


def _kind(value: object) -> ReasonKind:
    if value is classad2.Value.Error:
        return ReasonKind.ERROR
    return ReasonKind.UNDEFINED if value is classad2.Value.Undefined else ReasonKind.EXPRESSION


@lru_cache(maxsize=1024)
def _compile(text: str) -> Program | str:
    """The program of a text; what is wrong if it is none."""
    try:
        return read(SourceText(text=text, path="Requirements"))
    except InvalidInput as error:
        return str(error)
