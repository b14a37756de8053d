"""Values of requirements and resources, and how they compare."""

import math
import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from requirements.errors import InvalidInput, Problem
from requirements.written_reals import WrittenReal

Scalar = str | bool | int | float
Value = Scalar | tuple[Scalar, ...]

#: Larger integers are not exact in every program (RFC 8785, JSON).
MAX_INTEGER = 2**53 - 1
#: Characters of a text that expressions read; items of a list, and characters of all of them.
MAX_TEXT = 4_096
MAX_ITEMS = 10_000
MAX_LIST = 1_000_000

#: Marks in a row, such as accents, of a text that is normalized: the bound of stream-safe text in UAX 15.
MAX_MARKS = 30

#: Numbers written as text, for names that are declared as numbers.
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
#: Numbers that lose their last zeros: they may be meant as versions.
LOSING_ZEROS = re.compile(r"\d+\.\d*0", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unevaluated:
    """An expression in place of a value: its text as written."""

    text: str
    file: str | None = field(default=None, compare=False)
    line: int = field(default=1, compare=False)  #: of its start in the file
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return self.text


def fold(text: str) -> str:
    """Return the form in which names and texts are compared: Unicode canonical caseless matching, in NFC."""
    if text.isascii():
        return text.lower()
    if not _is_sortable(text):
        return text
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def to_nfc(text: str) -> str:
    """Return the text in NFC, where equal letters are equal characters."""
    return unicodedata.normalize("NFC", text) if not text.isascii() and _is_sortable(text) else text


def _is_sortable(text: str) -> bool:
    """Whether normalization takes time linear in the text.

    Marks are sorted by insertion: a megabyte of them in the wrong order takes hours. No script has more than
    a few on one letter; text with more is compared as it is written.
    """
    if unicodedata.is_normalized("NFC", text):
        return True
    runs = bytes(map(unicodedata.combining, text)).split(b"\0")
    return max(map(len, runs)) <= MAX_MARKS


def as_value(raw: object, path: str) -> Value:
    """Convert `raw`, from a file or a request, to a value; `path` is its path, for messages.

    Raises:
        InvalidInput: Another type, or a number that not every program can represent.
    """
    if not isinstance(raw, list | tuple):
        if fault := _fault(raw):
            raise InvalidInput([Problem(path=path, message=fault)])
        return _plain(cast(Scalar, raw))
    problems = [
        Problem(path=f"{path}[{position}]", message=fault)
        for position, item in enumerate(raw)
        if (fault := _fault(item))
    ]
    if problems:
        raise InvalidInput(problems)
    return tuple(map(_plain, raw))


def _plain(scalar: Scalar) -> Scalar:
    return float(scalar) if type(scalar) is WrittenReal else scalar


def as_short_value(raw: object, path: str) -> Value:
    """Convert `raw` like `as_value`; refuse a value that is too long for expressions."""
    value = as_value(raw, path)
    if excess := find_excess(value):
        raise InvalidInput([Problem(path=path, message=excess)])
    return value


def _fault(raw: object) -> str | None:
    """Return why `raw` is no scalar value; None: it is."""
    if isinstance(raw, str):
        return text_fault(raw)
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return _number_fault(raw)
    if raw is None:
        seen = "no value"
    elif isinstance(raw, dict):
        seen = "a record"
    elif isinstance(raw, list | tuple):
        seen = "a list inside a list"
    else:
        seen = f"{raw} ({type(raw).__name__}; as text it needs quotes)"
    allowed = "text, a number, a boolean or a list of these"
    return f"{seen}, allowed is {allowed}"


def _number_fault(scalar: int | float) -> str | None:  # noqa: PYI041  # `float` alone hides the integers
    if isinstance(scalar, int) and abs(scalar) > MAX_INTEGER:
        # Python refuses to write out integers of thousands of digits.
        seen = str(scalar) if scalar.bit_length() < 128 else f"an integer of {scalar.bit_length()} bits"
        return f"{seen} is out of range, integers reach from {-MAX_INTEGER} to {MAX_INTEGER}"
    if isinstance(scalar, float) and not math.isfinite(scalar):
        return f"{scalar} is not a number to compare with"
    return None


def text_fault(text: str) -> str | None:
    """Return why `text` cannot be stored everywhere: NUL, half a surrogate pair; None if it can.

    The ClassAd library crashes the process on the latter.
    """
    if "\0" in text:
        return f"{text[:40]!r} contains the character NUL"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{text[:40]!r} is not valid Unicode text"
    return None


def find_excess(value: Value) -> str | None:
    """Return why a value is too long for expressions, with the bound; None if they can read it.

    Their evaluation is not interruptible, and takes as long as the texts that it reads.
    """
    if isinstance(value, str):
        return _excess(len(value), "characters", MAX_TEXT)
    if not isinstance(value, tuple):
        return None
    if excess := _excess(len(value), "items", MAX_ITEMS):
        return excess
    sizes = [len(item) for item in value if isinstance(item, str)]
    longest = _excess(max(sizes, default=0), "characters in one item", MAX_TEXT)
    return longest or _excess(sum(sizes), "characters in all items", MAX_LIST)


def _excess(seen: int, unit: str, allowed: int) -> str | None:
    return f"has {seen} {unit}, allowed are {allowed}" if seen > allowed else None


def as_number(value: Scalar) -> Scalar:
    """Convert a number written as text; other values are returned unchanged.

    To be used only for names that are declared as numbers.
    """
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    number = float(value)
    return normal_number(number) if math.isfinite(number) else value


def advise_quotes(number: float | str) -> str:
    """What is wrong with a version that is a number, as which it has lost its last zeros."""
    return f"{number} is a number, as which 9.10 is 9.1; write versions in quotes"


def normal_number(number: int | float) -> int | float:  # noqa: PYI041  # `float` alone hides the integers
    """Return the one form of equal numbers: 4000, 4000.0 and 4e3 are the integer."""
    if isinstance(number, float) and number.is_integer() and abs(number) <= MAX_INTEGER:
        return int(number)
    return number


def normal(value: Value) -> Value:
    """Return the one form of equivalent values.

    Text is folded, equal numbers are one, lists are unique and sorted (booleans, numbers, texts), and a list
    of one is its value.
    """
    if not isinstance(value, tuple):
        return _normal_scalar(value)
    unique = {key(item): _normal_scalar(item) for item in value}
    items = tuple(unique[each] for each in sorted(unique))
    return items[0] if len(items) == 1 else items


def _normal_scalar(scalar: Scalar) -> Scalar:
    if isinstance(scalar, str):
        return fold(scalar)
    return scalar if isinstance(scalar, bool) else normal_number(scalar)


def deduplicate(value: Value) -> Value:
    """Remove duplicates from a list, keeping the spelling."""
    if not isinstance(value, tuple):
        return value
    first = {key(item): item for item in reversed(value)}
    return tuple(first[each] for each in sorted(first))


def key(scalar: Scalar) -> tuple[int, float, str]:
    """Return a sortable key that is equal for equal scalars only; True is not 1."""
    if isinstance(scalar, str):
        return 2, 0, fold(scalar)
    return (0 if isinstance(scalar, bool) else 1), scalar, ""


def exact(value: Value | None) -> Hashable:
    """Return a key that distinguishes True from 1, 5.0 from 5 and -0.0 from 0.0, unlike `==`."""
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def lookup(resource: Mapping[str, Value], name: str) -> Value | None:
    """Return the parameter with this name in any case of letters; None if it is absent or null."""
    if name in resource:
        return resource[name]
    folded = fold(name)
    return next((value for other, value in resource.items() if fold(other) == folded), None)


def lookup_each(resource: Mapping[str, Value], names: Iterable[str]) -> Iterator[tuple[str, Value | None]]:
    """Look up several names, folding those of the resource only once."""
    folded: dict[str, Value] | None = None
    for name in names:
        if name in resource:
            yield name, resource[name]
            continue
        if folded is None:
            folded = {fold(other): resource[other] for other in reversed(list(resource))}
        yield name, folded.get(fold(name))


def format_value(value: Value) -> str:
    """Format a value for people."""
    if isinstance(value, tuple):
        return ", ".join(format_value(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(normal_number(value)) if isinstance(value, float) else str(value)


#: Keywords with several values, of which users mostly state one and compare it as a single value.
_ONE_OR_MORE = frozenset({"site", "gridce", "platform", "outputse"})


def job_attributes(body: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes of a stored description; values of other types are left out."""
    found: dict[str, Value] = {}
    for name, raw in body.items():
        try:
            found[name] = as_value(attribute_value(name, raw), name)
        except InvalidInput:
            continue
    return found


def attribute_value(name: str, value: object) -> object:
    """Return the value of a keyword; a list with a single site, CE, platform or SE as its item."""
    if fold(name) in _ONE_OR_MORE and isinstance(value, list | tuple) and len(value) == 1:
        return value[0]
    return value
