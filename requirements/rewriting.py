"""One condition of an expression, written otherwise: another name, another value."""

from collections.abc import Iterator
from dataclasses import dataclass

from requirements.errors import InvalidInput
from requirements.grammar import read_expression
from requirements.rendering import rendered
from requirements.source import Source
from requirements.syntax import Attribute, Call, Chain, Literal, Node, Span, children
from requirements.values import Scalar, fold

_SCOPES = frozenset({"other", "target", "my", "self"})
#: Comparisons seen from their other side.
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARING = frozenset({*_MIRRORED, "==", "=?=", "is"})
_MEMBER = frozenset({"member", "identicalmember", "stringlistmember", "stringlistimember"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An attribute beside a value that is written out."""

    attribute: str  #: as written, with its scope
    operator: str  #: with the attribute on the left
    value: Scalar
    whole: Span

    @property
    def name(self) -> str:
        """The parameter that is looked at."""
        return unscoped(self.attribute)


def attributes(text: str) -> Iterator[tuple[str, Span]]:
    """Every attribute that a condition names, as written; nothing if it does not read as one."""
    for node in _nodes(text):
        if isinstance(node, Attribute):
            yield ".".join(node.names), node


def comparisons(text: str) -> Iterator[Comparison]:
    """Every comparison of one attribute with one value; nothing if it does not read as an expression."""
    for node in _nodes(text):
        if isinstance(node, Chain) and len(node.rest) == 1:
            operator, right = node.rest[0]
            if operator in _COMPARING:
                yield from _comparison(node, node.first, operator, right)
        elif isinstance(node, Call) and fold(node.name) in _MEMBER and len(node.arguments) == 2:
            yield from _comparison(node, node.arguments[1], node.name, node.arguments[0])


def compared(comparison: Comparison, operator: str, value: Scalar) -> str:
    """A comparison of the same attribute, written out."""
    literal = rendered(Literal(start=0, end=0, value=value))
    if fold(operator) in _MEMBER:
        return f"{operator}({literal}, {comparison.attribute})"
    return f"{comparison.attribute} {operator} {literal}"


def replaced(text: str, place: Span, new: str) -> str:
    """The condition with something else at a place."""
    return text[: place.start] + new + text[place.end :]


def unscoped(attribute: str) -> str:
    """The name without `other.` and its like."""
    scope, dot, name = attribute.partition(".")
    return name if dot and fold(scope) in _SCOPES else attribute


def _comparison(whole: Node, left: Node, operator: str, right: Node) -> Iterator[Comparison]:
    if isinstance(left, Literal) and isinstance(right, Attribute):
        left, right, operator = right, left, _MIRRORED.get(operator, operator)
    if isinstance(left, Attribute) and isinstance(right, Literal) and isinstance(right.value, Scalar):
        yield Comparison(attribute=".".join(left.names), operator=operator, value=right.value, whole=whole)


def _nodes(text: str) -> Iterator[Node]:
    try:
        waiting = [read_expression(Source(text=text, path="Requirements"))]
    except InvalidInput:
        return
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))
