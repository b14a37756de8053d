"""Requirements as one ClassAd expression over the resource, with `MY.X` replaced by values of the job.

Jobs of many users share a pool, so own values are substituted before the pool id is computed: `other.MaxRAM >
MY.Memory` of a job with `Memory = 2000` becomes `other.MaxRAM > 2000`. Source: HTCondor's and gLite's
matchmaking.

Find and replace single conditions of an expression: another name, another value.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from requirements.classad import evaluation
from requirements.classad.normal_form import literal, normal_form
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import (
    MAX_SIZE,
    check,
    own_name,
    parts_of,
    resource_name,
)
from requirements.classad.syntax_tree import (
    MIRRORED,
    MOST_IN_EXPRESSION,
    Attribute,
    Call,
    Chain,
    Literal,
    Node,
    SourceText,
    TextSpan,
    attribute_key,
    attribute_name,
    render,
    words,
)
from requirements.errors import InvalidInput
from requirements.kept import keep
from requirements.values import Scalar, Unevaluated, as_value, fold

#: In every text with `MY.X` or `self.X`, also where the name is quoted.
_MAY_OWN = re.compile("my|self|'", re.IGNORECASE)
_SCOPES = frozenset({"other", "target", "my", "self"})
_COMPARING = frozenset({*MIRRORED, "==", "=?=", "is"})
_MEMBER = frozenset({"member", "identicalmember", "stringlistmember", "stringlistimember"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeComparison:
    """Comparison of an attribute with a literal."""

    attribute: str  #: as written, with its scope
    operator: str  #: with the attribute on the left
    value: Scalar
    literal: TextSpan  #: place of the value
    whole: TextSpan

    @property
    def name(self) -> str:
        """Name of the parameter, without scope."""
        return unscoped_name(self.attribute)


def attributes(text: str) -> Iterator[tuple[str, TextSpan]]:
    """Yield every attribute in a condition, as written; nothing if the text cannot be parsed."""
    for node in parts(text):
        if isinstance(node, Attribute):
            yield ".".join(node.names), node


def comparisons(text: str) -> Iterator[AttributeComparison]:
    """Yield every comparison of one attribute with one literal; nothing if the text cannot be parsed."""
    for node in parts(text):
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
    """Return the text with `new` instead of this span."""
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
            attribute=".".join(left.names),
            operator=operator,
            value=right.value,
            literal=right,
            whole=whole,
        )


def parts(text: str) -> Iterator[Node]:
    """Yield every part of an expression; nothing if the text cannot be parsed."""
    try:
        node = read_expression(SourceText(text=text, path="Requirements"))
    except InvalidInput:
        return
    yield from parts_of(node)


#: Steps towards the normal form; a text that still changes after these is left as written. Two are usual.
_ROUNDS = 8
#: Length of a chain of expressions that refer to each other.
MAX_STEPS = 10

#: Returns the description's value or expression of a name; None: it has none.
Own = Callable[[str], object]


class OutOfScopeError(LookupError):
    """A name that an expression must not refer to; the message gives the reason."""


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
            functions, patterns that RE2 refuses, attributes of anything but the resource, refers to itself,
            or is too large.
    """
    source = SourceText(text=text, path=path, file=file, line=line, column=column)
    if len(text) > MAX_SIZE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_SIZE}")
    evaluated = text
    if own is not None and _MAY_OWN.search(text) and any(map(_is_own, parts_of(read_expression(source)))):
        evaluated = _Resolution(own=own).text(source, (path,))
    if evaluated == text:
        evaluation.read(source)
        return Expression(text=text)
    try:
        evaluation.read(SourceText(text=evaluated, path=path))
    except InvalidInput as error:
        # With values put in, columns are not those of the file.
        problems = [replace(each, file=file, line=None, column=None) for each in error.problems]
        raise InvalidInput(problems) from None
    return Expression(text=evaluated, written=text)


def _is_own(part: Node) -> bool:
    return isinstance(part, Attribute) and own_name(part) is not None


def _measure(_: object, expression: Expression) -> int:
    return 8 * len(expression.text)


@keep(32, _measure)
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


@keep(32, _measure)
def pool_expression(expression: Expression) -> Expression:
    """Return the expression that is evaluated for all jobs of a pool: the normal form, names as spelled here.

    Two spellings of one normal form differ where a part is Error; so neither is evaluated as written.
    """
    spelled: dict[str, str] = {}
    for part in parts_of(read_expression(_source(expression.text))):
        if isinstance(part, Attribute) and (name := resource_name(part)) is not None:
            spelled.setdefault(attribute_key(name), expression.text[part.start : part.end])

    def render_name(part: Node) -> str | None:
        name = resource_name(part) if isinstance(part, Attribute) else None
        return None if name is None else spelled.get(attribute_key(name), attribute_name(name))

    form = canonical_text(expression)
    for text in (render(read_expression(_source(form)), render_name), form):
        try:
            evaluation.read(_source(text))
        except InvalidInput:
            continue  # too long with these names, or with the blanks of the form
        return Expression(text=text, written=expression.original_text)
    return expression


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


@dataclass(slots=True, kw_only=True)
class _Resolution:
    """Substitution of `MY.X` and `self.X` in one expression, with the values substituted so far.

    Missing values become `undefined`; an expression is put in parentheses.
    """

    own: Own
    known: dict[str, str] = field(default_factory=dict)
    words: int = 0  #: of all texts parsed so far

    def text(self, source: SourceText, inside: tuple[str, ...]) -> str:
        """Return the text after substitution; `inside` names the expressions that refer to it."""
        # Each text is part of the result at least once, so nothing that could be parsed is refused.
        self.words += words(source.text, MOST_IN_EXPRESSION)
        if self.words > MOST_IN_EXPRESSION:
            allowed = f"{MOST_IN_EXPRESSION} names, numbers, operators and brackets"
            raise source.fault(0, f"with all that leads here too long, allowed are {allowed}")
        node = read_expression(source)
        pieces: list[str] = []
        size = position = 0
        for part in parts_of(node):
            if isinstance(part, Attribute) and (name := own_name(part)) is not None:
                pieces += source.text[position : part.start], self._put_in(name, source, part, inside)
                position = part.end
                size += len(pieces[-1])
                if size > MAX_SIZE:
                    raise source.fault(part.start, f"with this put in, more than {MAX_SIZE} characters")
        return "".join((*pieces, source.text[position:]))

    def _put_in(self, name: str, source: SourceText, part: Attribute, inside: tuple[str, ...]) -> str:
        if fold(name) not in self.known:
            try:
                self.known[fold(name)] = self._written(name, inside)
            except OutOfScopeError as error:
                raise source.fault(part.start, str(error)) from None
        return self.known[fold(name)]

    def _written(self, name: str, inside: tuple[str, ...]) -> str:
        """Return the replacement of `MY.<name>`."""
        value = self.own(name)
        if value is None:
            return "undefined"
        if not isinstance(value, Unevaluated):
            return _literal(value, name)
        if fold(name) in map(fold, inside):
            raise OutOfScopeError(f"refers to itself: {' -> '.join((*inside, name))}")
        if len(inside) > MAX_STEPS:
            raise OutOfScopeError(f"more than {MAX_STEPS} expressions refer to each other: {inside[-1]}")
        place = SourceText(text=value.text, path=name, file=value.file, line=value.line, column=value.column)
        return f"({self.text(place, (*inside, name))})"


def _literal(value: object, name: str) -> str:
    try:
        plain = as_value(value, name)
    except InvalidInput as error:
        raise OutOfScopeError(f"MY.{name}: {error.problems[0].message}") from None
    if isinstance(plain, tuple):
        return f"{{{', '.join(_scalar(item) for item in plain)}}}"
    return _scalar(plain)


def _scalar(scalar: Scalar) -> str:
    if isinstance(scalar, bool | str):
        return render(Literal(value=scalar))
    text = render(literal(scalar))
    return f"({text})" if text.startswith("-") else text
