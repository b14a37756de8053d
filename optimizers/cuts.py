"""Cutting out of a JDL what each job has for itself: texts that are equal beside that are read once.

What is cut out is of plain form: a text without escapes, a number, a list of such texts. Whether a cut is
where it seems to be, and not in a comment or in another text, is not known here: `moulds` makes sure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cs_config import keywords
from requirements.values import fold

#: What the texts of one submission often differ in, as far as it is of plain form.
_OPEN: Final = keywords.OPEN - {"ExecutionEnvironment"}
_BY_SPELLING: Final = {
    fold(spelling): keyword.name
    for keyword in keywords.KEYWORDS
    if keyword.name in _OPEN
    for spelling in (keyword.name, *keyword.also)
}

#: No escapes, no end of line, nothing that cannot be shown or stored.
_PLAIN: Final = r'"[^"\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+"'
_NUMBER: Final = "(?:0|[1-9][0-9]{0,8})"
_LIST: Final = rf"\{{{_PLAIN}(?:, {_PLAIN})*\}}"
_WRITTEN: Final = {str: re.compile(_PLAIN), int: re.compile(_NUMBER), list: re.compile(_LIST)}
_CUT: Final = re.compile(
    rf"([\n;\[]\s*(?:{'|'.join(_BY_SPELLING)})\s*=\s*)({_PLAIN}|{_NUMBER}|{_LIST})(?=\s*;)",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"[A-Za-z]+")
#: Characters; longer texts are rare and take what they take.
_LONGEST: Final = 100_000

Value = str | int | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is left of a text."""

    pieces: tuple[str, ...]  #: one more than there are openings
    openings: tuple[tuple[str, type], ...]  #: the keyword that each value belongs to, and what it is

    def values(self, text: str) -> tuple[Value, ...] | None:
        """What a text of this form has in its openings; None: it is of another."""
        first, *others = self.pieces
        if not text.startswith(first) or not text.endswith(others[-1]) or _is_odd(text):
            return None
        values: list[Value] = []
        at = len(first)
        for (_, kind), piece in zip(self.openings, others, strict=True):
            written = _WRITTEN[kind].match(text, at)
            if written is None or not text.startswith(piece, written.end()):
                return None
            values.append(_value(written[0]))
            at = written.end() + len(piece)
        return tuple(values) if at == len(text) else None

    def join(self, written: Sequence[str]) -> str:
        """The text with these in its openings."""
        return "".join(part for pair in zip(self.pieces, (*written, ""), strict=True) for part in pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A text taken apart."""

    form: Form
    values: tuple[Value, ...]


def cut(text: str) -> Cut | None:
    """The text without what its job has for itself; None: it has nothing, or of no plain form."""
    if _is_odd(text):
        return None
    parts = _CUT.split(f"\n{text}")
    if len(parts) == 1:
        return None
    values = tuple(map(_value, parts[2::3]))
    names = (_BY_SPELLING[_NAME.search(lead)[0].lower()] for lead in parts[1::3])  # type: ignore[index]
    first, *others = map("".join, zip(parts[0::3], (*parts[1::3], ""), strict=True))
    openings = tuple((name, type(value)) for name, value in zip(names, values, strict=True))
    return Cut(form=Form(pieces=(first[1:], *others), openings=openings), values=values)


def _is_odd(text: str) -> bool:
    return len(text) > _LONGEST or "=)s" in text


def _value(written: str) -> Value:
    if written[0] == "{":
        return written[2:-2].split('", "')
    return written[1:-1] if written[0] == '"' else int(written)
