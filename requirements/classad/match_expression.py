"""Two-sided match expressions, such as a site's condition on its own state and on a job.

`MY.X` and `self.X` belong to the own side, `TARGET.X` and `other.X` to the other. A bare name belongs to the
own side; with `bare_is_either` also to the other side, if the own side has no such name. Source: HTCondor's
matchmaking; SAM-Grid's `Requirements` of a site.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from requirements.classad import evaluation as classad_compiled
from requirements.classad.evaluation import Program, conjuncts
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import is_other, own_name, parts_of, resource_name
from requirements.classad.syntax_tree import (
    Attribute,
    Node,
    SourceText,
    attribute_key,
    attribute_name,
    render,
)
from requirements.kept import keep
from requirements.values import MAX_INTEGER, Value, lookup

#: Prefixes of names, so that both sides may use the same name.
_OTHER, _EITHER = "target.", "either."


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSided:
    """An expression compiled for evaluation over two sides."""

    text: str  #: as written
    compiled: Program
    parts: tuple["TwoSided", ...] = ()  #: operands of the outermost `&&`; empty if there is none
    spelled: Mapping[str, str] = field(default_factory=dict)  #: names in `compiled`, as written

    @property
    def asks_other(self) -> bool:
        """Whether the value depends on the other side, whatever the own side has."""
        return any(name.startswith(_OTHER) for name in self.compiled.names)

    @property
    def own_names(self) -> Iterator[str]:
        """Names of the own side, in lower case."""
        return (name.removeprefix(_EITHER) for name in self.compiled.names if not name.startswith(_OTHER))

    def other_names(self, own: Mapping[str, Value]) -> Iterator[str]:
        """Yield the names of the other side that matter for this own side, in lower case."""
        for name in self.compiled.names:
            if name.startswith(_OTHER):
                yield name.removeprefix(_OTHER)
            elif name.startswith(_EITHER) and lookup(own, name.removeprefix(_EITHER)) is None:
                yield name.removeprefix(_EITHER)

    def value(self, own: Mapping[str, Value], other: Mapping[str, Value] | None = None) -> object:
        """Evaluate: a Python value, or `classad2.Value` for undefined and Error.

        It is fastest if the names of both sides are in lower case.
        """
        return self.compiled.value(self._visible_value(own, other or {}))

    def is_true(self, own: Mapping[str, Value], other: Mapping[str, Value] | None = None) -> bool:
        """Whether the value is `true`: not undefined, Error or a number."""
        return self.value(own, other) is True

    def failing(self, own: Mapping[str, Value], other: Mapping[str, Value]) -> tuple["TwoSided", ...]:
        """Return the operands of the outermost `&&` that are not true; empty if and only if all are."""
        if self.is_true(own, other):
            return ()
        return tuple(part for part in self.parts if not part.is_true(own, other)) or (self,)

    def has(self, own: Mapping[str, Value], other: Mapping[str, Value]) -> str:
        """Format the values of both sides for the names in the expression."""
        seen = self._visible_value(own, other)
        return classad_compiled.format_values(self.compiled, seen, self.spelled) or ""

    def _visible_value(self, own: Mapping[str, Value], other: Mapping[str, Value]) -> dict[str, Value]:
        found = {}
        for name in self.compiled.names:
            value = _side_name(name, own, other)
            if value is not None:
                found[name] = value
        return found


@keep(32, lambda found, text, *_: 100 * len(text) + found.compiled.patterns)
def parse_match_expression(
    text: str, path: str = "Requirements", *, bare_is_either: bool = False
) -> TwoSided:
    """Parse and compile an expression.

    With `bare_is_either` a bare name that the own side does not have belongs to the other side.
    """
    source = SourceText(text=text, path=path)
    node = read_expression(source)
    operands = tuple(conjuncts(node))
    whole = _compiled(node, text, path, bare_is_either=bare_is_either)
    if len(operands) < 2:
        return whole
    parts = (
        _compiled(part, text[part.start : part.end], path, bare_is_either=bare_is_either) for part in operands
    )
    return TwoSided(text=text, compiled=whole.compiled, parts=tuple(parts), spelled=whole.spelled)


def number(text: str, own: Mapping[str, Value], path: str) -> float | None:
    """Evaluate an expression for its own side; None if it is not a number that expressions can use."""
    value = parse_match_expression(text, path).value(own)
    if type(value) is int or type(value) is float:
        return value if is_reckonable(value) else None
    return None


def is_reckonable(value: float) -> bool:
    """Whether expressions can use this number: it is finite, and exact if it is an integer."""
    return math.isfinite(value) and (not isinstance(value, int) or abs(value) <= MAX_INTEGER)


def _compiled(node: Node, text: str, path: str, *, bare_is_either: bool) -> TwoSided:
    spelled: dict[str, str] = {}

    def marked(part: Node) -> str | None:
        if not isinstance(part, Attribute) or (name := _marked(part, bare_is_either=bare_is_either)) is None:
            return None
        spelled.setdefault(attribute_key(name), ".".join(part.names))
        return attribute_name(name)

    compiled = classad_compiled.read(SourceText(text=render(node, marked), path=path))
    for part in parts_of(node):
        if isinstance(part, Attribute) and _marked(part, bare_is_either=bare_is_either) is None:
            spelled.setdefault(attribute_key(part.names[-1]), ".".join(part.names))
    return TwoSided(text=text, compiled=compiled, spelled=spelled)


def _marked(part: Attribute, *, bare_is_either: bool) -> str | None:
    if (own := own_name(part)) is not None:
        return own
    if is_other(part):
        return _OTHER + part.names[1]
    bare = resource_name(part)  # the clock and the like belong to neither side
    return _EITHER + bare if bare_is_either and bare is not None else None


def _side_name(name: str, own: Mapping[str, Value], other: Mapping[str, Value]) -> Value | None:
    if name.startswith(_OTHER):
        return lookup(other, name.removeprefix(_OTHER))
    if not name.startswith(_EITHER):
        return lookup(own, name)
    plain = name.removeprefix(_EITHER)
    found = lookup(own, plain)
    return lookup(other, plain) if found is None else found
