"""Syntax tree of ClassAd expressions, and its rendering: one text for all spellings of a tree.

Blanks, comments, redundant parentheses and the case of names are dropped; `is` becomes `=?=`; a real number
is never written as an integer, since `5/2` and `5.0/2` differ; text keeps its case, since `=?=` distinguishes
it.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from requirements.values import Scalar


class Special(Enum):
    """The two special values of the language, different from the texts "undefined" and "error"."""

    UNDEFINED = "undefined"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """Position of a part in the text, which is ignored when trees are compared; 0 of parts made here."""

    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(TextSpan):
    """A literal of an expression: a number, text, boolean, undefined or error."""

    value: Scalar | Special


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute(TextSpan):
    """A name, or names joined by dots; `absolute` with a dot in front."""

    names: tuple[str, ...]
    absolute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(TextSpan):
    """Operators of one precedence, left-associative: `first op operand op operand …`."""

    level: int  #: the precedence; a higher one binds more tightly
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
    """A function call."""

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
    """`of.name` where `of` is not an attribute."""

    of: "Node"
    name: str


Node = Literal | Attribute | Chain | Unary | Conditional | Call | ListOf | Ad | Subscript | AttributeSelection

#: Binary operators by precedence.
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
LOGICAL_OPERATORS = {AND: "&&", OR: "||"}
#: Precedences of comparisons.
COMPARISONS = (PRECEDENCE["=="], PRECEDENCE["<"])
#: Comparison operators with their operands swapped.
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: Unary operators; `a ?: b` (b if a is undefined), which binds most tightly; everything else.
UNARY, ELVIS, PRIMARY = 11, 12, 13

#: Reserved words: operators and values.
KEYWORDS = frozenset({"is", "isnt", "true", "false", "undefined", "error"})


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct operands of a node, from left to right."""
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


def flatten(node: Node, level: int) -> tuple[Node, ...]:
    """Return the operands of a chain with this precedence, or the node itself."""
    return children(node) if isinstance(node, Chain) and node.level == level else (node,)


def binding(node: Node) -> int:
    """Precedence of a part: as an operand of an operator with a higher one it needs parentheses."""
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

#: Returns another text for a part, or None.
Override = Callable[[Node], str | None]


def render(node: Node, override: Override = lambda _: None) -> str:
    """Write a tree as text, which parses to the same tree; `override` is called first for every part."""
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
    """Normalize a name for the library, which ignores the case of ASCII letters."""
    return unicodedata.normalize("NFC", name).translate(_UPPER_TO_LOWER)


def attribute_name(name: str) -> str:
    """Write a name for an expression, quoted where necessary."""
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
