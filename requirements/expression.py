"""Requirements as one ClassAd expression over the resource."""

from dataclasses import dataclass

from requirements import program
from requirements.grammar import read_expression
from requirements.rendering import attribute_name, rendered
from requirements.restrictions import resource_name
from requirements.source import Source
from requirements.syntax import Attribute, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A ClassAd expression that must be true of the resource.

    `other.X`, `TARGET.X` and a bare `X` are the same parameter of the resource: nothing else is in
    scope, since jobs of many users share a pool.
    """

    text: str  #: as the user spelled it


def parse_expression(
    text: str, path: str = "Requirements", *, file: str | None = None, line: int = 1, column: int = 1
) -> Expression:
    """The expression that a job description states.

    Args:
        text: The expression.
        path: What it is, for the messages.
        file: The file it stands in.
        line: Where it begins there.
        column: Where it begins there.

    Raises:
        InvalidInput: It is no ClassAd expression, or it has what a user may not evaluate here: functions
            that are not pure, patterns that RE2 refuses, attributes of anything but the resource, or too
            much of all.
    """
    program.read(Source(text=text, path=path, file=file, line=line, column=column))
    return Expression(text=text)


def canonical_text(expression: Expression) -> str:
    """One text for spellings of one expression; equal texts are equal expressions, the reverse need not hold.

    Blanks, comments, needless parentheses, the case of names and functions, and the scope (`other.X`,
    `TARGET.X`, `X`) are gone. Order and operators are kept as written.

    Raises:
        InvalidInput: The text is no expression.
    """
    return rendered(read_expression(Source(text=expression.text, path="Requirements")), _unscoped)


def _unscoped(part: Node) -> str | None:
    name = resource_name(part) if isinstance(part, Attribute) else None
    return None if name is None else attribute_name(name)
