"""The parts of a ClassAd expression as a tree."""

from dataclasses import dataclass, field
from enum import Enum

from requirements.values import Scalar


class Special(Enum):
    """The two values of the language that are no data; the text "undefined" is not one of them."""

    UNDEFINED = "undefined"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where in the text a part stands; equal trees may stand at different places."""

    start: int = field(compare=False)
    end: int = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(Span):
    """A value written out."""

    value: Scalar | Special


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute(Span):
    """A name, or names with dots between; `absolute` with one before."""

    names: tuple[str, ...]
    absolute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(Span):
    """Operators of one precedence in a row, from the left: `first op operand op operand …`."""

    level: int  #: the precedence; a higher one binds closer
    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(Span):
    """`- + ! ~` before an operand."""

    operator: str
    operand: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional(Span):
    """`condition ? then : otherwise`."""

    condition: "Node"
    then: "Node"
    otherwise: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Span):
    """A function with its arguments."""

    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf(Span):
    """`{ a, b }`."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ad(Span):
    """`[ name = value; … ]`, in the order written."""

    entries: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscript(Span):
    """`of[index]`."""

    of: "Node"
    index: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Span):
    """`of.name` where `of` is more than names with dots."""

    of: "Node"
    name: str


Node = Literal | Attribute | Chain | Unary | Conditional | Call | ListOf | Ad | Subscript | Selection

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
        case Selection(of=of):
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
