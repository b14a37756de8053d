"""Requirements as one ClassAd expression over the resource."""

from dataclasses import dataclass, field, replace

from requirements.classad import compiled, self_references
from requirements.classad.normal_form import normal_form
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import MAX_SIZE, check, resource_name
from requirements.classad.self_references import Own
from requirements.classad.source_text import SourceText
from requirements.classad.syntax_tree import Attribute, Node, attribute_name, render
from requirements.errors import InvalidInput

#: Steps towards the normal form; a text that still changes after these is left as written. Two are usual.
_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A ClassAd expression that must be true of the resource.

    `other.X`, `TARGET.X` and a bare `X` are the same parameter of the resource: nothing else is in scope,
    since jobs of many users share a pool. `MY.X` was replaced by its value.
    """

    text: str  #: as evaluated
    written: str | None = field(default=None, compare=False, repr=False)  #: with `MY.`, if it had any

    @property
    def original_text(self) -> str:
        """The text as written by the user."""
        return self.text if self.written is None else self.written


def parse_expression(
    text: str,
    path: str = "Requirements",
    *,
    file: str | None = None,
    line: int = 1,
    column: int = 1,
    own: Own | None = None,
) -> Expression:
    """Parse the expression in a job description.

    `path` is its name there, for messages and for references to itself; line and column are those of its
    start in the file. `own` has the values of the description for `MY.X`, which is not in scope without it.

    Raises:
        InvalidInput: Not a ClassAd expression, or one that users may not evaluate here: it contains impure
            functions, patterns that RE2 refuses, attributes of anything but the resource, or is too large.
    """
    source = SourceText(text=text, path=path, file=file, line=line, column=column)
    if len(text) > MAX_SIZE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_SIZE}")
    evaluated = text if own is None else self_references.resolved(source, own, name=path)
    compiled.read(replace(source, text=evaluated))
    return Expression(text=evaluated, written=None if evaluated == text else text)


def canonical_text(expression: Expression) -> str:
    """Return the normal form, which is the same for many spellings of an expression.

    Expressions with the same text are true of the same resources, except for resources where a part is Error;
    the reverse need not hold. If the normal form is too large or too deep to be parsed again, order and
    operators stay as written.
    """
    node = read_expression(_source(expression.text))
    written = render(node, _unscoped)
    try:
        text = _normal(written)
        for _ in range(_ROUNDS):
            before, text = text, _normal(text)
            if text == before:
                return text
    except InvalidInput:
        return written
    return written


def _normal(text: str) -> str:
    """Do one step towards the normal form; raises InvalidInput if the text is refused."""
    source = _source(text)
    if len(text) > MAX_SIZE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_SIZE}")
    node = read_expression(source)
    check(node, source)
    return render(normal_form(node), _unscoped)


def _source(text: str) -> SourceText:
    return SourceText(text=text, path="Requirements")


def _unscoped(part: Node) -> str | None:
    name = resource_name(part) if isinstance(part, Attribute) else None
    return None if name is None else attribute_name(name)
