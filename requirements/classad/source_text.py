"""Source text with positions for errors, and a size check before parsing.

Parsing takes microseconds per word, so a text of a megabyte could block for seconds. Counting words is fast,
and stops at the limit.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from requirements.errors import InvalidInput, Problem

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


#: A list of plain texts, such as thousands of file names, is parsed in one step. Without possessive
#: quantifiers: inside a repeated group those of Python 3.11.0 to 3.11.4 match what they should not.
TEXTS = re.compile(r'\{\s*"[^"\\]*"(?:\s*,\s*"[^"\\]*")*\s*\}')
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
