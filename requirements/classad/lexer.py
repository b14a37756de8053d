r"""Lexer for ClassAd text, and a cursor over its tokens; it refuses literals that `classad2` misreads.

The library reads `99999999999999999999` as 0, some hexadecimal and octal numbers as others, `1e400` as
infinite, `1e-400` as 0, `"\x41"` as x41 and `"\777"` as ?7. Here each of these is an error with its position.
"""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple, Self

import classad2

from requirements.classad.syntax_tree import SourceText
from requirements.errors import InvalidInput
from requirements.values import MAX_INTEGER, Scalar, text_fault


class TokenKind(StrEnum):
    """Kind of a token."""

    NAME = "name"
    QUOTED_NAME = "quoted name"  #: 'a name between single quotes', never a keyword
    STRING = "text"
    NUMBER = "number"
    OPERATOR = "operator"
    END = "the end"


class ClassAdToken(NamedTuple):
    """Token; `value` is the name, the text, the number or the operator itself."""

    kind: TokenKind
    value: Scalar
    start: int
    end: int


class UnfitNumber(float):
    """Stands for a number that is not the same to every program, in a text that is read in spite of it."""

    __slots__ = ("fault",)
    fault: str

    def __new__(cls, fault: str) -> Self:
        """One with what is wrong with it."""
        number = super().__new__(cls, math.nan)
        number.fault = fault
        return number


_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n\v\f]+|//[^\n]*|/\*.*?\*/)
      | (?P<number>\.?[0-9](?:[eE][+-](?=[0-9])|[0-9A-Za-z_.])*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"(?:[^"\\]++|\\.)*+")
      | (?P<quoted>'(?:[^'\\]++|\\.)*+')
      | (?P<elvis>\?[ \t\r\n\v\f]*:)
      | (?P<operator>=\?=|=!=|>>>|<<|>>|<=|>=|==|!=|\|\||&&|/(?!\*)|[-+*%&|^~!<>?:()\[\]{},;.=])
      | (?P<comment>\#[^\n]*)""",
    re.VERBOSE | re.DOTALL,
)
_INTEGER = re.compile(r"0|[1-9][0-9]*")
_REAL = re.compile(r"(?:[0-9]*\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
#: Escapes with their usual meaning in the library; for others it only drops the backslash.
_ESCAPE = re.compile(r"""\\(?:[abfnrtv\\"']|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7]))""")
_BACKSLASH = re.compile(r"\\(?:[0-7]{1,3}|[xX][0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_UNFINISHED = {
    '"': 'the text is not ended by "',
    "'": "the name is not ended by '",
    "/*": "the comment is not ended by */",
}


def scan(source: SourceText, position: int = 0) -> Iterator[ClassAdToken]:
    """Yield the tokens of a text from `position`, then the end.

    `//`, `/* … */` and lines that start with `#` are comments.
    """
    text = source.text
    if position == 0:
        source.check_characters()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or (found["comment"] and text[text.rfind("\n", 0, position) + 1 : position].strip()):
            raise source.fault(position, _unreadable(text, position))
        position = found.end()
        token = _token(source, found)
        if token is not None:
            yield token
    yield ClassAdToken(TokenKind.END, "", position, position)


def _unreadable(text: str, position: int) -> str:
    for start, message in _UNFINISHED.items():
        if text.startswith(start, position):
            return message
    return f"{text[position]!r} has no meaning here"


def _token(source: SourceText, found: re.Match[str]) -> ClassAdToken | None:
    start, end, word = found.start(), found.end(), found[0]
    match found.lastgroup:
        case "name":
            return ClassAdToken(TokenKind.NAME, word, start, end)
        case "elvis":
            return ClassAdToken(TokenKind.OPERATOR, "?:", start, end)
        case "operator":
            return ClassAdToken(TokenKind.OPERATOR, word, start, end)
        case "number":
            return ClassAdToken(TokenKind.NUMBER, _number(source, start, word), start, end)
        case "string":
            return ClassAdToken(TokenKind.STRING, _unquoted(source, start, word), start, end)
        case "quoted":
            return ClassAdToken(TokenKind.QUOTED_NAME, _quoted_name(source, start, word), start, end)
        case _:
            return None


def _number(source: SourceText, start: int, word: str) -> int | float:
    if (fault := _number_fault(word)) is None:
        return int(word) if _INTEGER.fullmatch(word) else float(word)
    if source.keeps_unfit_numbers:
        return UnfitNumber(f"{_cut(word)} {fault}")
    raise source.fault(start, f"{_cut(word)} {fault}")


def _number_fault(word: str) -> str | None:
    """Why a word is no number, or not the same to every program; None: it is one."""
    if _INTEGER.fullmatch(word):
        # `int` refuses thousands of digits.
        is_large = len(word) > 16 or int(word) > MAX_INTEGER
        return f"is out of range, integers reach to {MAX_INTEGER}" if is_large else None
    if _REAL.fullmatch(word):
        return _real_fault(word)
    if re.match("0[xX]", word):
        return "is hexadecimal; numbers are written in decimal"
    if re.match("0[bB]", word):
        return "is binary; numbers are written in decimal"
    if word.isdigit():
        return "has a leading zero, which would make it octal; numbers are written in decimal"
    return "is not a number; allowed are 12, 1.5 and 1e3"


def _real_fault(word: str) -> str | None:
    value = float(word)
    is_zero = not re.search("[1-9]", re.split("[eE]", word)[0])
    if math.isfinite(value) and bool(value) is not is_zero:
        return None
    reach = f"from {math.ulp(0.0):.2g} to {sys.float_info.max:.2g}"
    return f"is out of range, numbers with a point or exponent reach {reach}"


def _cut(word: str) -> str:
    return word if len(word) <= 40 else f"{word[:40]}…"


def _unquoted(source: SourceText, start: int, word: str) -> str:
    if "\\" not in word:
        return word[1:-1]
    _check_escapes(source, start, word)
    try:
        text = classad2.unquote(word)
    except ValueError as error:  # an octal escape of NUL, or of bytes that are not UTF-8
        raise source.fault(start, f"{_cut(word)} has an escape that is not a character") from error
    if not isinstance(text, str) or text_fault(text):
        raise source.fault(start, f"{_cut(word)} has an escape that is not a character")
    return text


def _check_escapes(source: SourceText, start: int, word: str) -> None:
    position = word.find("\\")
    while position >= 0:
        if (known := _ESCAPE.match(word, position)) is None:
            raise source.fault(start + position, _no_escape(word, position))
        position = word.find("\\", known.end())


def _no_escape(word: str, position: int) -> str:
    found = _BACKSLASH.match(word, position)
    shown = found[0] if found else word[position:]
    sign = shown[1:]
    if sign[0] in "xX" and len(sign) > 1:
        return f"{shown} is not an escape; write the character itself"
    if len(sign) == 3:
        return f"{shown} is beyond \\377, the last byte; write the character itself"
    allowed = r"\n, \t, \", \101 and the like"
    shown = shown if sign.isprintable() else f"a backslash before {sign!r}"
    return f"{shown} is not an escape; write \\\\ for a backslash, or leave it out; escapes are {allowed}"


def _quoted_name(source: SourceText, start: int, word: str) -> str:
    _check_escapes(source, start, word)
    inside = re.sub(r'\\.|"', lambda sign: r"\"" if sign[0] == '"' else sign[0], word[1:-1], flags=re.DOTALL)
    name = _unquoted(source, start, f'"{inside}"')
    if not name.strip():
        raise source.fault(start, "a name is empty")
    return name


#: Below the library's own limits (165 parentheses, 124 conditions in parentheses), beyond which it
#: fails without a message, and low enough for recursive functions over trees.
MAX_DEPTH = 120

#: Of a parametric job, which JDL has in quotes.
_PLACEHOLDER = re.compile(r"%(\(\w{1,40}\))?[a-zA-Z]\b")
_MEANT = {"and": "&&", "or": "||", "not": "!", "=": "=="}


class Cursor:
    """Current token and nesting depth."""

    def __init__(self, source: SourceText, start: int = 0, depth: int = 0) -> None:
        self.source = source
        self._tokens = scan(source, start)
        self.token = next(self._tokens)
        self.ended = 0  #: end of the previous token
        self.depth = depth

    def next(self) -> ClassAdToken:
        """Return the current token and move to the next."""
        taken = self.token
        self.ended = taken.end
        if taken.kind is not TokenKind.END:
            self.token = next(self._tokens)
        return taken

    def move_to(self, end: int) -> None:
        """Skip to a position in the text where a token ends."""
        self.ended = end
        self._tokens = scan(self.source, end)
        self.token = next(self._tokens)

    def is_at(self, sign: str) -> bool:
        """Whether the current token is this operator."""
        return self.token.kind is TokenKind.OPERATOR and self.token.value == sign

    def is_at_end(self) -> bool:
        """Whether all tokens are consumed."""
        return self.token.kind is TokenKind.END

    def take(self, sign: str) -> bool:
        """Skip the operator if it is the current token, and return whether it was."""
        there = self.is_at(sign)
        if there:
            self.next()
        return there

    def expect(self, sign: str, why: str = "") -> int:
        """Skip the operator, which must be the current token, and return its start."""
        start = self.token.start
        if not self.take(sign):
            raise self.unexpected(f"{sign} {why}".rstrip())
        return start

    def expect_end(self) -> None:
        """Require that all tokens are consumed."""
        if not self.is_at_end():
            raise self.unexpected("the end")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Enter one nesting level."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.too_deep(self.token.start)
        yield
        self.depth -= 1

    def too_deep(self, start: int) -> InvalidInput:
        """Return the error for excessive nesting, to be raised by the caller."""
        return self.source.fault(start, f"nested deeper than {MAX_DEPTH} levels")

    def unexpected(self, wanted: str) -> InvalidInput:
        """Return the error for an unexpected current token, to be raised by the caller."""
        token = self.token
        seen = self.source.text[token.start : min(token.end, token.start + 40)] or "the end"
        meant = None if wanted.startswith("a name") else _MEANT.get(seen.lower())
        if placeholder := _PLACEHOLDER.match(self.source.text, token.start):
            meant = f'"{placeholder[0]}"'
        return self.source.fault(token.start, f"{seen} where {wanted} should stand", meant)
