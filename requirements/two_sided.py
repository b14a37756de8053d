"""Expressions of one side about itself and the other: a site about its own state and a job.

A bare name and `MY.X`, `self.X` are the side's own; `TARGET.X` and `other.X` are the other's.
Source: HTCondor's matchmaking; SAM-Grid's `Requirements` of a site.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from requirements import program
from requirements.grammar import read_expression
from requirements.program import Program
from requirements.rendering import attribute_name, rendered
from requirements.source import Source
from requirements.syntax import Attribute, Node
from requirements.values import Value

_OWN = frozenset({"my", "self"})
_OTHER = frozenset({"other", "target"})
#: Stands before the names of the other side, so that both sides may have the same name.
_MARK = "target."


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSided:
    """An expression that is ready to be evaluated over two sides."""

    compiled: Program
    asks_other: bool  #: whether the other side makes a difference

    def value(self, own: Mapping[str, Value], other: Mapping[str, Value] | None = None) -> object:
        """What it is: a Python value, or `classad2.Value` for undefined and Error."""
        if not other or not self.asks_other:
            return self.compiled.value(own)
        return self.compiled.value({**own, **{_MARK + name: value for name, value in other.items()}})

    def is_true(self, own: Mapping[str, Value], other: Mapping[str, Value] | None = None) -> bool:
        """Whether it is `true`: not undefined, not Error, not a number."""
        return self.value(own, other) is True


@lru_cache(maxsize=1024)
def read(text: str, path: str = "Requirements") -> TwoSided:
    """The expression of a text.

    Raises:
        InvalidInput: It is no ClassAd expression, or has what may not be evaluated here.
    """
    node = read_expression(Source(text=text, path=path))
    compiled = program.read(Source(text=rendered(node, _marked), path=path))
    return TwoSided(compiled=compiled, asks_other=any(name.startswith(_MARK) for name in compiled.names))


def number(text: str, own: Mapping[str, Value], path: str) -> float | None:
    """The number that an expression is for its own side; None if it is none.

    Raises:
        InvalidInput: It is no expression.
    """
    value = read(text, path).value(own)
    return value if type(value) in (int, float) else None  # type: ignore[return-value]


def _marked(part: Node) -> str | None:
    if not isinstance(part, Attribute) or len(part.names) != 2 or part.absolute:
        return None
    scope, name = part.names
    if scope.lower() in _OWN:
        return attribute_name(name)
    return attribute_name(_MARK + name) if scope.lower() in _OTHER else None
