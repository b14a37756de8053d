"""Syntax tree of ClassAd expressions, and its rendering: one text for all spellings of a tree.

Blanks, comments, redundant parentheses and the case of names are dropped; `is` becomes `=?=`; a real number
is never written as an integer, since `5/2` and `5.0/2` differ; text keeps its case, since `=?=` distinguishes
it.

Source text with positions for errors, and a size check before parsing.

Parsing takes microseconds per word, so a text of a megabyte could block for seconds. Counting words is fast,
and stops at the limit.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from requirements.errors import InvalidInput, Problem
from requirements.values import Scalar, to_nfc

#: Characters of a long line in an excerpt before and after the position.
_AROUND = 50
#: Characters that cannot be displayed or stored.
_UNFIT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """A text and its origin."""

    text: str
    path: str  #: what the text is, such as `Requirements`
    file: str | None = None
    line: int = 1  #: of its first character in the file
    column: int = 1  #: of its first character in the file
    keeps_unfit_numbers: bool = False  #: as `UnfitNumber`, instead of an error

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column in the file, from 1, of a character of the text."""
        before = self.text.count("\n", 0, offset)
        column = offset - self.text.rfind("\n", 0, offset)
        return self.line + before, column + (0 if before else self.column - 1)

    def fault(self, offset: int, message: str, suggestion: str | None = None) -> InvalidInput:
        """Return the error about a character of the text, to be raised by the caller."""
        line, column = self.place(offset)
        problem = Problem(
            path=self.path,
            message=message,
            suggestion=suggestion,
            file=self.file,
            line=line,
            column=column,
            excerpt=self._excerpt(offset),
        )
        return InvalidInput([problem])

    def check_characters(self) -> None:
        """Refuse text that cannot be stored everywhere: NUL, or half of a surrogate pair."""
        if unfit := _UNFIT.search(self.text):
            sign = unfit[0]
            if "\udc80" <= sign <= "\udcff":  # Python's `surrogateescape` for a byte that is not UTF-8
                raise self.fault(unfit.start(), f"byte 0x{ord(sign) - 0xDC00:02x} is not UTF-8")
            raise self.fault(unfit.start(), f"{sign!r} is not a valid character")

    def _excerpt(self, offset: int) -> str:
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        end = len(self.text) if end < 0 else end
        first, last = max(start, offset - _AROUND), min(end, offset + _AROUND)
        cut = _UNFIT.sub("\ufffd", self.text[first:last].rstrip("\r"))
        return ("…" if first > start else "") + cut + ("…" if last < end else "")


#: Unterminated comments and texts extend to the end, so that no part is scanned twice.
_WORD = re.compile(
    r"""(?://[^\n]*+|/\*(?:.*?\*/|.*+)|\s++)
      | (?P<word>\{\s*+"[^"\\]*+"(?:\s*+,\s*+"[^"\\]*+")*+\s*+\}
      | "(?:[^"\\]++|\\.)*+"?
      | [A-Za-z0-9_.]++
      | [=?!<>|&:]++
      | .)""",
    re.VERBOSE | re.DOTALL,
)

#: Words of an ad: a list of texts is one, names, numbers, operators and brackets are one each.
MOST_IN_AD = 12_000
#: Words of an expression.
MOST_IN_EXPRESSION = 6_000


def words(text: str, most: int) -> int:
    """Count the words, up to one more than `most`."""
    return sum(1 for _ in islice(_find_words(text), most + 1))


def _find_words(text: str) -> Iterator[re.Match[str]]:
    return (found for found in _WORD.finditer(text) if found["word"] is not None)


def check_volume(source: SourceText, most: int) -> None:
    """Refuse texts of more than `most` words, which would take long to parse."""
    if len(source.text) <= most:
        return
    if extra := next(islice(_find_words(source.text), most, None), None):
        message = f"too long, allowed are {most} names, numbers, operators and brackets"
        raise source.fault(extra.start(), message)


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
    return to_nfc(name).translate(_UPPER_TO_LOWER)


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
    return f'"{_escaped(to_nfc(value))}"'


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda sign: f"\\{ord(sign[0]):03o}", text)
