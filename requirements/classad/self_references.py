"""Substitute `MY.X` and `self.X` in the expression of a job by values of its own description.

Jobs of many users share a pool, so own values are substituted before the pool id is computed: `other.MaxRAM >
MY.Memory` of a job with `Memory = 2000` becomes `other.MaxRAM > 2000`. Source: HTCondor's and gLite's
matchmaking.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from requirements.classad.classad_files import Unevaluated
from requirements.classad.constants import literal
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import MAX_SIZE, own_name, parts_of
from requirements.classad.source_text import MOST_IN_EXPRESSION, SourceText, words
from requirements.classad.syntax_tree import Attribute, Literal, render
from requirements.errors import InvalidInput
from requirements.values import Scalar, as_value, fold

#: Length of a chain of expressions that refer to each other.
MAX_STEPS = 10

#: Returns the description's value or expression of a name; None: it has none.
Own = Callable[[str], object]


class OutOfScopeError(LookupError):
    """A name that an expression must not refer to; the message gives the reason."""


def resolved(source: SourceText, own: Own, *, name: str) -> str:
    """Return the text with `MY.X` and `self.X` replaced by the values of the description.

    Missing values become `undefined`; an expression is put in parentheses. `name` is the name of the
    expression in the description.
    """
    return _Resolution(own=own).text(source, (name,))


@dataclass(slots=True, kw_only=True)
class _Resolution:
    """Substitution in one expression, with the values substituted so far."""

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
