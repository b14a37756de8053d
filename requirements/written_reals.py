"""Real numbers that keep the text by which they were written: 5.10 is a version where a text is wanted."""

import json
from collections.abc import Mapping
from typing import Final, Self, TypeVar

_Value = TypeVar("_Value")
#: Characters of a text that is kept; a number has 24 at most by itself.
LONGEST: Final = 40


class WrittenReal(float):
    """A real number with its text, which the number alone does not give: 5.10, 1e3; `as_value` drops it."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, value: float, text: str) -> Self:
        """The number, and how it is written."""
        number = super().__new__(cls, value)
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[Self], tuple[float, str]]:
        """For copies."""
        return type(self), (float(self), self.text)


def read_real(text: str) -> float:
    """A real number of a JSON text, for `parse_float` of its reader.

    `WrittenReal` where programs write another text: 0.30000000000000004 is nothing that anyone chose.
    """
    number = float(text)
    return number if repr(number) == text or len(text) > LONGEST else WrittenReal(number, text)


def write_json(value: object) -> str:
    """A value as JSON, with the real numbers of another JSON text as they are written there."""
    if isinstance(value, WrittenReal):
        return value.text
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(name)}: {write_json(each)}" for name, each in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_json, value))}]"
    return json.dumps(value)


def keep_text(value: _Value, text: str) -> _Value | WrittenReal:
    """The value; a real number with its text, unless that is longer than anyone writes a version."""
    return WrittenReal(value, text) if isinstance(value, float) and len(text) <= LONGEST else value
