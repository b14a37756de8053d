"""How the value of each kind of keyword is read, and what is said when it is something else."""

import json
import re
import shlex
from collections.abc import Mapping

from requirements.classads import Unevaluated
from requirements.values import MAX_INTEGER, as_number, text_fault

#: Site, CE, platform and tag names.
_NAME = re.compile(r"[A-Za-z0-9._:@+-]+")
#: Without these a shell splits every line.
_QUOTING = frozenset("'\"\\")
_YES = frozenset({"y", "yes", "true", "1"})
_NO = frozenset({"n", "no", "false", "0"})


class UnfitValueError(ValueError):
    """A value that its keyword cannot have; the message says what was seen and what is allowed."""


def seen(raw: object) -> str:
    """The value as its author may recognise it."""
    if isinstance(raw, Unevaluated):
        return f"{raw.text} is an expression (a text needs quotes)"
    if raw is None:
        return "no value"
    shown = json.dumps(raw, ensure_ascii=False, default=str)
    return shown if len(shown) <= 100 else f"{shown[:97]}…"


def text(raw: object) -> str:
    """A text; a bare number is taken for one."""
    if isinstance(raw, str):
        read = raw
    elif isinstance(raw, bool) or not isinstance(raw, int | float):
        raise UnfitValueError(f"{seen(raw)}, allowed is a text")
    else:
        read = str(raw)
    if fault := text_fault(read):
        raise UnfitValueError(fault)
    return read


def filled_text(raw: object) -> str:
    """A text that says something."""
    if not (read := text(raw).strip()):
        raise UnfitValueError("is empty")
    return read


def arguments(raw: object) -> str:
    """A command line as the pilot will split it; a list is quoted where a shell would need it."""
    if isinstance(raw, list | tuple):
        return shlex.join(text(word) for word in raw)
    line = text(raw)
    if _QUOTING.isdisjoint(line):
        return line
    try:
        shlex.split(line)
    except ValueError as error:
        raise UnfitValueError(f"{seen(line)} cannot be split into words as in a shell: {error}") from None
    return line


def texts(raw: object) -> tuple[str, ...]:
    """Texts; one alone is a list of one, blank ones are left out."""
    items = raw if isinstance(raw, list | tuple) else (raw,)
    return tuple(read for item in items if (read := text(item).strip()))


def names(raw: object) -> tuple[str, ...]:
    """Names of sites, tags and the like, also as one text with commas; each once."""
    found = dict.fromkeys(
        part for item in texts(raw) for part in (word.strip() for word in item.split(",")) if part
    )
    for name in found:
        if not _NAME.fullmatch(name):
            raise UnfitValueError(f"{name!r} is no name, allowed are letters, digits and . _ : @ + -")
    return tuple(found)


def whole_number(raw: object) -> int:
    """An integer, also one written as text."""
    number = (
        as_number(raw.strip() if isinstance(raw, str) else raw) if isinstance(raw, str | int | float) else raw
    )
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > MAX_INTEGER:
        raise UnfitValueError(f"{seen(raw)}, allowed is a whole number")
    return number


def number(raw: object) -> float:
    """A number, also one written as text."""
    read = as_number(raw) if isinstance(raw, str | int | float) else raw
    if isinstance(read, bool) or not isinstance(read, int | float) or not abs(read) <= MAX_INTEGER:
        raise UnfitValueError(f"{seen(raw)}, allowed is a number")
    return float(read)


def flag(raw: object) -> bool:
    """Yes or no, in the words that DIRAC knows."""
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower() if isinstance(raw, str | int) else ""
    if word in _YES or word in _NO:
        return word in _YES
    raise UnfitValueError(f"{seen(raw)}, allowed is true or false")


def environment(raw: object) -> tuple[tuple[str, str], ...]:
    """Variables for the payload: a record, or texts such as `NAME=value`."""
    if isinstance(raw, Mapping):
        pairs = [(str(name), text(value)) for name, value in raw.items()]
    else:
        pairs = [_variable(item) for item in texts(raw)]
    for name, _ in pairs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UnfitValueError(f"{name!r} is no name of a variable")
    return tuple(sorted(dict(pairs).items()))


def _variable(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise UnfitValueError(f"{item!r}, allowed is NAME=value")
    return name.strip(), value


def logical_names(raw: object) -> tuple[str, ...]:
    """Logical file names, with or without `LFN:` before them; each once.

    Source: DIRAC: the path begins at the root and has no empty part.
    """
    found = tuple(dict.fromkeys(re.sub(r"^LFN:", "", item, flags=re.IGNORECASE) for item in texts(raw)))
    for name in found:
        if not name.startswith("/") or "//" in name:
            raise UnfitValueError(f"{name!r} is no logical file name, such as LFN:/vo/path/file")
    return found
