"""The values that requirements ask for and resources have, and how they compare."""

import math
import re
import unicodedata
from collections.abc import Hashable, Mapping

from requirements.errors import InvalidInput, Problem

Scalar = str | bool | int | float
Value = Scalar | tuple[Scalar, ...]

#: Integers beyond this are not the same number in every program (RFC 8785, JSON).
MAX_INTEGER = 2**53 - 1

#: What counts as a number where a declaration lets it be written as text.
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def fold(text: str) -> str:
    """The form in which names and texts compare: canonical caseless matching of Unicode, composed (NFC)."""
    return text.lower() if text.isascii() else _fold_unicode(text)


def _fold_unicode(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def as_value(raw: object, path: str) -> Value:
    """The value that `raw`, from a file or a request, stands for.

    Args:
        raw: Text, boolean, number or a list of these.
        path: Where it stands, for the message.

    Raises:
        InvalidInput: It is something else, or a number that not every program can hold.
    """
    if not isinstance(raw, list | tuple):
        return _as_scalar(raw, path)
    items: list[Scalar] = []
    problems: list[Problem] = []
    for position, item in enumerate(raw):
        try:
            items.append(_as_scalar(item, f"{path}[{position}]"))
        except InvalidInput as error:
            problems.extend(error.problems)
    if problems:
        raise InvalidInput(problems)
    return tuple(items)


def _as_scalar(raw: object, path: str) -> Scalar:
    if isinstance(raw, bool | int | float | str):
        if fault := _fault(raw):
            raise InvalidInput([Problem(path=path, message=fault)])
        return raw
    if raw is None:
        seen = "no value"
    elif isinstance(raw, dict):
        seen = "a record"
    elif isinstance(raw, list | tuple):
        seen = "a list inside a list"
    else:
        seen = f"{raw} ({type(raw).__name__}; as text it needs quotes)"
    allowed = "text, a number, a boolean or a list of these"
    raise InvalidInput([Problem(path=path, message=f"{seen}, allowed is {allowed}")])


def _fault(scalar: Scalar) -> str | None:
    if isinstance(scalar, str):
        return text_fault(scalar)
    if isinstance(scalar, int) and abs(scalar) > MAX_INTEGER:
        # Python refuses to write out integers of thousands of digits.
        seen = str(scalar) if scalar.bit_length() < 128 else f"an integer of {scalar.bit_length()} bits"
        return f"{seen} is out of range, integers reach from {-MAX_INTEGER} to {MAX_INTEGER}"
    if isinstance(scalar, float) and not math.isfinite(scalar):
        return f"{scalar} is not a number to compare with"
    return None


def text_fault(text: str) -> str | None:
    """What makes `text` unfit to be stored everywhere: NUL, half a surrogate pair; None if nothing does.

    The ClassAd library ends the process when it sees the latter.
    """
    if "\0" in text:
        return f"{text[:40]!r} contains the character NUL"
    if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
        return f"{text[:40]!r} is not valid Unicode text"
    return None


def as_number(value: Scalar) -> Scalar:
    """A number written as text as that number; everything else as it is.

    To be used only where a declaration says that the name is a number.
    """
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    number = float(value)
    return normal_number(number) if math.isfinite(number) else value


def normal_number(number: int | float) -> int | float:  # noqa: PYI041  # `float` alone hides the integers
    """The one form of equal numbers: 4000, 4000.0 and 4e3 are the integer."""
    if isinstance(number, float) and number.is_integer() and abs(number) <= MAX_INTEGER:
        return int(number)
    return number


def normal(value: Value) -> Value:
    """The one form of values that ask for the same.

    Text is folded, equal numbers are one, lists are unique and sorted (booleans, numbers, texts), and
    a list of one is its value.
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
    """The value in its own spelling, without what is in a list twice."""
    if not isinstance(value, tuple):
        return value
    first = {key(item): item for item in reversed(value)}
    return tuple(first[each] for each in sorted(first))


def key(scalar: Scalar) -> tuple[int, float, str]:
    """What is the same for equal scalars, and only for them; it also sorts. True is not 1."""
    if isinstance(scalar, str):
        return 2, 0, fold(scalar)
    return (0 if isinstance(scalar, bool) else 1), scalar, ""


def exact(value: Value | None) -> Hashable:
    """A key that tells True from 1, 5.0 from 5 and -0.0 from 0.0, as `==` does not."""
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def lookup(resource: Mapping[str, Value], name: str) -> Value | None:
    """The parameter of that name in any case of letters; None if it is absent or null."""
    if name in resource:
        return resource[name]
    folded = fold(name)
    return next((value for other, value in resource.items() if fold(other) == folded), None)


def format_value(value: Value) -> str:
    """The value for a person to read."""
    if isinstance(value, tuple):
        return ", ".join(format_value(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(normal_number(value)) if isinstance(value, float) else str(value)
