"""The parts of a ClassAd expression as a tree.

Trees of expressions back into text: one text for all spellings of a tree.

Blanks, comments, needless parentheses and the case of names are gone; `is` is `=?=`; a real number is
never written as an integer, since `5/2` and `5.0/2` differ; text keeps its case, since `=?=` minds it.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from requirements.values import Scalar


class Special(Enum):
    """The two values of the language that are no data; the text "undefined" is not one of them."""

    UNDEFINED = "undefined"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """Where in the text a part stands; equal trees may stand at different places."""

    start: int = field(compare=False)
    end: int = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(TextSpan):
    """A value written out."""

    value: Scalar | Special


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute(TextSpan):
    """A name, or names with dots between; `absolute` with one before."""

    names: tuple[str, ...]
    absolute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(TextSpan):
    """Operators of one precedence in a row, from the left: `first op operand op operand …`."""

    level: int  #: the precedence; a higher one binds closer
    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(TextSpan):
    """`- + ! ~` before an operand."""

    operator: str
    operand: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional(TextSpan):
    """`condition ? then : otherwise`."""

    condition: "Node"
    then: "Node"
    otherwise: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(TextSpan):
    """A function with its arguments."""

    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf(TextSpan):
    """`{ a, b }`."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ad(TextSpan):
    """`[ name = value; … ]`, in the order written."""

    entries: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscript(TextSpan):
    """`of[index]`."""

    of: "Node"
    index: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeSelection(TextSpan):
    """`of.name` where `of` is more than names with dots."""

    of: "Node"
    name: str


Node = Literal | Attribute | Chain | Unary | Conditional | Call | ListOf | Ad | Subscript | AttributeSelection

#: Operators between two operands, by how close they bind.
PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    **dict.fromkeys(("==", "!=", "=?=", "=!="), 6),
    **dict.fromkeys(("<", "<=", ">", ">="), 7),
    **dict.fromkeys(("<<", ">>", ">>>"), 8),
    **dict.fromkeys(("+", "-"), 9),
    **dict.fromkeys(("*", "/", "%"), 10),
}
OR, AND = PRECEDENCE["||"], PRECEDENCE["&&"]
#: Operators of one operand; `a ?: b` (a unless it is undefined, then b), closer than any other; all else.
UNARY, ELVIS, PRIMARY = 11, 12, 13

#: Words that are operators or values, never names.
KEYWORDS = frozenset({"is", "isnt", "true", "false", "undefined", "error"})


def children(node: Node) -> tuple[Node, ...]:
    """The parts directly below a node, from left to right."""
    match node:
        case Chain(first=first, rest=rest):
            return first, *(operand for _, operand in rest)
        case Unary(operand=operand):
            return (operand,)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            return condition, then, otherwise
        case Call(arguments=parts) | ListOf(items=parts):
            return parts
        case Ad(entries=entries):
            return tuple(value for _, value in entries)
        case Subscript(of=of, index=index):
            return of, index
        case AttributeSelection(of=of):
            return (of,)
        case _:
            return ()


def binding(node: Node) -> int:
    """How close a part holds together: an operand needs parentheses where it binds less than its operator."""
    match node:
        case Conditional():
            return 0
        case Chain(level=level):
            return level
        case Unary():
            return UNARY
        case _:
            return PRIMARY


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')
_UPPER_TO_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}

#: Says for a part how to write it, None to write it as it is.
Override = Callable[[Node], str | None]


def render(node: Node, override: Override = lambda _: None) -> str:
    """The text of a tree; reading it gives the same tree.

    Args:
        node: The tree.
        override: Asked first for every part.
    """
    text = override(node)
    if text is not None:
        return text
    match node:
        case Literal(value=value):
            return _literal(value)
        case Attribute(names=names, absolute=absolute):
            return "." * absolute + ".".join(attribute_name(name) for name in names)
        case Chain() | Unary() | Conditional():
            return _operation(node, override)
        case Call(name=name, arguments=arguments):
            return f"{name.lower()}({_joined(arguments, override)})"
        case ListOf(items=items):
            return f"{{{_joined(items, override)}}}"
        case Ad(entries=entries):
            values = (f"{attribute_name(name)} = {render(value, override)}" for name, value in entries)
            return f"[{'; '.join(values)}]"
        case Subscript(of=of, index=index):
            return f"{_within(of, PRIMARY, override)}[{render(index, override)}]"
        case AttributeSelection(of=of, name=name):
            # After a number the dot would be a decimal point.
            text = f"({render(of, override)})" if isinstance(of, Literal) else _within(of, PRIMARY, override)
            return f"{text}.{attribute_name(name)}"


def attribute_key(name: str) -> str:
    """The one form of a name for the library, which takes small and capital ASCII letters as the same."""
    return unicodedata.normalize("NFC", name).translate(_UPPER_TO_LOWER)


def attribute_name(name: str) -> str:
    """A name as it stands in an expression, quoted where it would not read as a name."""
    key = attribute_key(name)
    if _IDENTIFIER.fullmatch(key) and key not in KEYWORDS:
        return key
    return "'" + _escaped(key).replace("'", r"\047") + "'"


def _operation(node: Chain | Unary | Conditional, override: Override) -> str:
    if isinstance(node, Unary):
        return node.operator + _within(node.operand, UNARY, override)
    if isinstance(node, Chain):
        rest = (
            f" {operator} {_within(operand, node.level + 1, override)}" for operator, operand in node.rest
        )
        return _within(node.first, node.level, override) + "".join(rest)
    condition, then, otherwise = (_within(part, 1, override) for part in children(node))
    return f"{condition} ? {then} : {otherwise}"


def _within(node: Node, lowest: int, override: Override) -> str:
    """The text of an operand, in parentheses if it would not bind close enough without."""
    text = render(node, override)
    return text if binding(node) >= lowest else f"({text})"


def _joined(nodes: tuple[Node, ...], override: Override) -> str:
    return ", ".join(render(node, override) for node in nodes)


def _literal(value: Scalar | Special) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Special):
        return value.value
    return f'"{_escaped(unicodedata.normalize("NFC", value))}"'


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda sign: f"\\{ord(sign[0]):03o}", text)
