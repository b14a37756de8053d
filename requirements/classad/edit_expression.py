"""Find and replace single conditions of an expression: another name, another value."""

from collections.abc import Iterator
from dataclasses import dataclass

from requirements.classad.parser import read_expression
from requirements.classad.restrictions import parts_of
from requirements.classad.source_text import SourceText
from requirements.classad.syntax_tree import (
    MIRRORED,
    Attribute,
    Call,
    Chain,
    Literal,
    Node,
    TextSpan,
    render,
)
from requirements.errors import InvalidInput
from requirements.values import Scalar, fold

_SCOPES = frozenset({"other", "target", "my", "self"})
_COMPARING = frozenset({*MIRRORED, "==", "=?=", "is"})
_MEMBER = frozenset({"member", "identicalmember", "stringlistmember", "stringlistimember"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeComparison:
    """Comparison of an attribute with a literal."""

    attribute: str  #: as written, with its scope
    operator: str  #: with the attribute on the left
    value: Scalar
    whole: TextSpan

    @property
    def name(self) -> str:
        """Name of the parameter, without scope."""
        return unscoped_name(self.attribute)


def attributes(text: str) -> Iterator[tuple[str, TextSpan]]:
    """Yield every attribute in a condition, as written; nothing if the text cannot be parsed."""
    for node in _nodes(text):
        if isinstance(node, Attribute):
            yield ".".join(node.names), node


def comparisons(text: str) -> Iterator[AttributeComparison]:
    """Yield every comparison of one attribute with one literal; nothing if the text cannot be parsed."""
    for node in _nodes(text):
        if isinstance(node, Chain) and len(node.rest) == 1:
            operator, right = node.rest[0]
            if operator in _COMPARING:
                yield from _comparison(node, node.first, operator, right)
        elif isinstance(node, Call) and fold(node.name) in _MEMBER and len(node.arguments) == 2:
            yield from _comparison(node, node.arguments[1], node.name, node.arguments[0])


def render_comparison(comparison: AttributeComparison, operator: str, value: Scalar) -> str:
    """Write a comparison of the same attribute with another operator and value."""
    literal = render(Literal(value=value))
    if fold(operator) in _MEMBER:
        return f"{operator}({literal}, {comparison.attribute})"
    return f"{comparison.attribute} {operator} {literal}"


def replace_part(text: str, place: TextSpan, new: str) -> str:
    """Return the text with another part at this place."""
    return text[: place.start] + new + text[place.end :]


def unscoped_name(attribute: str) -> str:
    """Return the name without `other.` and similar scopes."""
    scope, dot, name = attribute.partition(".")
    return name if dot and fold(scope) in _SCOPES else attribute


def _comparison(whole: Node, left: Node, operator: str, right: Node) -> Iterator[AttributeComparison]:
    if isinstance(left, Literal) and isinstance(right, Attribute):
        left, right, operator = right, left, MIRRORED.get(operator, operator)
    if isinstance(left, Attribute) and isinstance(right, Literal) and isinstance(right.value, Scalar):
        yield AttributeComparison(
            attribute=".".join(left.names), operator=operator, value=right.value, whole=whole
        )


def _nodes(text: str) -> Iterator[Node]:
    try:
        node = read_expression(SourceText(text=text, path="Requirements"))
    except InvalidInput:
        return
    yield from parts_of(node)
