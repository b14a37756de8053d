"""A text that is being read, and how to point into it.

How much there is to read in a text, known before it is read.

Reading takes microseconds a word, so a text of a megabyte could hold its reader for seconds; counting does
not, and stops where the text has too much.
"""

import re
from dataclasses import dataclass
from itertools import islice

from requirements.errors import InvalidInput, Problem

#: How much of a long line an excerpt shows before and after the place.
_AROUND = 50
#: What cannot be shown or stored.
_UNFIT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """A text with where it comes from."""

    text: str
    path: str  #: what the text is, such as `Requirements`
    file: str | None = None
    line: int = 1  #: of its first character in the file
    column: int = 1  #: of its first character in the file

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column in the file, from 1, of a character of the text."""
        before = self.text.count("\n", 0, offset)
        column = offset - self.text.rfind("\n", 0, offset)
        return self.line + before, column + (0 if before else self.column - 1)

    def fault(self, offset: int, message: str, suggestion: str | None = None) -> InvalidInput:
        """The error that says what is wrong at a character of the text; for the caller to raise."""
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
        """Refuse text that cannot be stored everywhere; the ClassAd library ends the process at some of it.

        Raises:
            InvalidInput: NUL, or half of a surrogate pair.
        """
        if unfit := _UNFIT.search(self.text):
            raise self.fault(unfit.start(), _unfit(unfit[0]))

    def _excerpt(self, offset: int) -> str:
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        end = len(self.text) if end < 0 else end
        first, last = max(start, offset - _AROUND), min(end, offset + _AROUND)
        cut = _UNFIT.sub("\ufffd", self.text[first:last].rstrip("\r"))
        return ("…" if first > start else "") + cut + ("…" if last < end else "")


def _unfit(sign: str) -> str:
    if "\udc80" <= sign <= "\udcff":  # so Python reads a byte that is not UTF-8 (`surrogateescape`)
        return f"byte 0x{ord(sign) - 0xDC00:02x} is not UTF-8"
    return f"{sign!r} is no character of a text"


#: A list of plain texts, such as thousands of file names, is read in one go.
TEXTS = re.compile(r'\{\s*+"[^"\\]*+"(?:\s*+,\s*+"[^"\\]*+")*+\s*+\}')
#: What is not ended goes to the end of the text, so that no part is looked at twice.
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
    """How many words there are; counted no further than the first that is too much."""
    counted = (found for found in _WORD.finditer(text) if found["word"] is not None)
    return sum(1 for _ in islice(counted, most + 1))


def check_volume(source: SourceText, most: int) -> None:
    """Refuse what would take long to read.

    Raises:
        InvalidInput: There are more words than `most`.
    """
    if len(source.text) <= most:
        return
    words = 0
    for found in _WORD.finditer(source.text):
        words += found["word"] is not None
        if words > most:
            message = f"too long, allowed are {most} names, numbers, operators and brackets"
            raise source.fault(found.start(), message)
