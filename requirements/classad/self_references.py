"""`MY.X` and `self.X` in the expression of a job: the value that its own description has.

Jobs of many users share a pool, so what an expression asks of its own job is put in before the pool is
named: `other.MaxRAM > MY.Memory` of a job with `Memory = 2000` is `other.MaxRAM > 2000`.
Source: HTCondor's and gLite's matchmaking.
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

#: Expressions of a description that refer to each other in a row.
MAX_STEPS = 10

#: Says what the description has under a name: a value, an expression, None for nothing.
Own = Callable[[str], object]


class OutOfScopeError(LookupError):
    """A name of the description that an expression must not ask for; the message says why."""


def resolved(source: SourceText, own: Own, *, name: str) -> str:
    """The text with the values of the description in place of `MY.X` and `self.X`.

    What the description does not have is `undefined`; an expression is put in with parentheses around it.

    Args:
        source: The expression.
        own: What the description has.
        name: What the expression itself is called there.

    Raises:
        InvalidInput: No expression, one that refers to itself, a name out of scope, or too much of all.
    """
    return _Resolution(own=own).text(source, (name,))


@dataclass(slots=True, kw_only=True)
class _Resolution:
    """One expression on its way, with what was put in already."""

    own: Own
    known: dict[str, str] = field(default_factory=dict)
    words: int = 0  #: of all texts that were read

    def text(self, source: SourceText, inside: tuple[str, ...]) -> str:
        """The text with everything put in; `inside` names the expressions that led here."""
        # Each text ends up in the whole at least once, so this refuses nothing that could be read.
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
        """What stands for `MY.<name>`.

        Raises:
            OutOfScopeError: No value, or an expression that leads back to itself, or on and on.
        """
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
    """A value as it stands in an expression.

    Raises:
        OutOfScopeError: It is none.
    """
    try:
        plain = as_value(value, name)
    except InvalidInput as error:
        raise OutOfScopeError(f"MY.{name}: {error.problems[0].message}") from None
    if isinstance(plain, tuple):
        return f"{{{', '.join(_scalar(item) for item in plain)}}}"
    return _scalar(plain)


def _scalar(scalar: Scalar) -> str:
    if isinstance(scalar, bool | str):
        return render(Literal(value=scalar, start=0, end=0))
    text = render(literal(scalar))
    return f"({text})" if text.startswith("-") else text
