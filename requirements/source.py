"""A text that is being read, and how to point into it."""

import re
from dataclasses import dataclass

from requirements.errors import InvalidInput
from requirements.problem import Problem

#: How much of a long line an excerpt shows before and after the place.
_AROUND = 50
#: What cannot be shown or stored.
_UNFIT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
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
