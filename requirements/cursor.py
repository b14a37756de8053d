"""A place among the tokens of a text, moving forward."""

from collections.abc import Iterator
from contextlib import contextmanager

from requirements.errors import InvalidInput
from requirements.source import Source
from requirements.tokens import Token, TokenKind, scan

#: Less than the library's own limits (165 parentheses, 124 conditions in parentheses), beyond which it
#: fails without saying why, and so little that no reader of trees runs out of Python's stack.
MAX_DEPTH = 120

_MEANT = {"and": "&&", "or": "||", "not": "!", "=": "=="}


class Cursor:
    """The token at hand, and how deep inside others it stands."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._tokens = scan(source)
        self.token = next(self._tokens)
        self.ended = 0  #: where the token before ends
        self._depth = 0

    def next(self) -> Token:
        """The token at hand, which is passed."""
        taken = self.token
        self.ended = taken.end
        if taken.kind is not TokenKind.END:
            self.token = next(self._tokens)
        return taken

    def move_to(self, end: int) -> None:
        """Pass everything before a place in the text, where a token ends."""
        self.ended = end
        self._tokens = scan(self.source, end)
        self.token = next(self._tokens)

    def at(self, sign: str) -> bool:
        """Whether the sign stands here."""
        return self.token.kind is TokenKind.OPERATOR and self.token.value == sign

    def at_end(self) -> bool:
        """Whether nothing stands here any more."""
        return self.token.kind is TokenKind.END

    def take(self, sign: str) -> bool:
        """Whether the sign stands here; if so, it is passed."""
        there = self.at(sign)
        if there:
            self.next()
        return there

    def expect(self, sign: str, why: str = "") -> int:
        """Pass the sign, which must stand here; returns where it starts."""
        start = self.token.start
        if not self.take(sign):
            raise self.unexpected(f"{sign} {why}".rstrip())
        return start

    def expect_end(self) -> None:
        """Nothing may stand here any more."""
        if not self.at_end():
            raise self.unexpected("the end")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level further inside."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.too_deep(self.token.start)
        yield
        self._depth -= 1

    def too_deep(self, start: int) -> InvalidInput:
        """The error for what is nested too deep; for the caller to raise."""
        return self.source.fault(start, f"nested deeper than {MAX_DEPTH} levels")

    def unexpected(self, wanted: str) -> InvalidInput:
        """The error for the token at hand where something else is wanted; for the caller to raise."""
        token = self.token
        seen = self.source.text[token.start : min(token.end, token.start + 40)] or "the end"
        meant = None if wanted.startswith("a name") else _MEANT.get(seen.lower())
        return self.source.fault(token.start, f"{seen} where {wanted} should stand", meant)
