"""Trees of expressions back into text: one text for all spellings of a tree.

Blanks, comments, needless parentheses and the case of names are gone; `is` is `=?=`; a real number is
never written as an integer, since `5/2` and `5.0/2` differ; text keeps its case, since `=?=` minds it.
"""

import re
import unicodedata
from collections.abc import Callable

from requirements.syntax import (
    KEYWORDS,
    PRIMARY,
    UNARY,
    Ad,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    Selection,
    Special,
    Subscript,
    Unary,
    binding,
    children,
)
from requirements.values import Scalar

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')
_UPPER_TO_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}

#: Says for a part how to write it, None to write it as it is.
Override = Callable[[Node], str | None]


def rendered(node: Node, override: Override = lambda _: None) -> str:
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
            values = (f"{attribute_name(name)} = {rendered(value, override)}" for name, value in entries)
            return f"[{'; '.join(values)}]"
        case Subscript(of=of, index=index):
            return f"{_within(of, PRIMARY, override)}[{rendered(index, override)}]"
        case Selection(of=of, name=name):
            # After a number the dot would be a decimal point.
            text = (
                f"({rendered(of, override)})" if isinstance(of, Literal) else _within(of, PRIMARY, override)
            )
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
    text = rendered(node, override)
    return text if binding(node) >= lowest else f"({text})"


def _joined(nodes: tuple[Node, ...], override: Override) -> str:
    return ", ".join(rendered(node, override) for node in nodes)


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
