"""Reading JSON so that nothing comes in that some part below could not store or compare."""

import json
import math
import re
from collections.abc import Iterator

from requirements.errors import InvalidRequest
from requirements.problem import MOST_PROBLEMS, Problem
from requirements.values import text_fault

#: Levels of lists and objects in each other; nothing that we read has more than a few.
_DEEPEST = 64
#: The largest integer of the databases.
_MAX_INTEGER = 2**63 - 1
#: The bytes of a body by what they may be part of: numbers, powers of ten, or what stands before a number.
_SHAPES = bytes(
    ord("0" if sign in "0123456789+-." else "e" if sign in "eE" else "," if sign in ":,[ \t\r\n" else "x")
    for sign in map(chr, range(256))
)
#: A power of ten; an integer of many digits.
_POWER = re.compile(rb",0+e")
_LONG = b"0" * 19


def parse(body: bytes) -> object:
    """The value that the body holds.

    Raises:
        InvalidRequest: It is not JSON in UTF-8, a name stands twice in one object, a number is not
            finite or beyond 64 bit, or a text holds NUL or half a surrogate pair.
    """
    try:
        value = _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise _invalid(f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"is not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except RecursionError:
        raise _invalid("is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _invalid(str(error)) from None
    if is_plain(body):
        return value
    if problems := [
        problem for problem, _ in zip(_problems(value, "", 0), range(MOST_PROBLEMS), strict=False)
    ]:
        raise InvalidRequest(problems)
    return value


def is_plain(body: bytes) -> bool:
    """Whether a look at the bytes shows that nothing in them can be wrong, if they are JSON at all.

    What `_problems` finds is an escaped character or such a number: raw NULs are no JSON, and UTF-8 has no
    halves of pairs.
    """
    if body.count(b"[") + body.count(b"{") > _DEEPEST or b"\\u" in body:
        return False
    shape = b"," + body.translate(_SHAPES)
    return _LONG not in shape and _POWER.search(shape) is None


def check_text(path: str, text: str) -> None:
    """Refuse text of a path, a query or a header that could not be stored.

    Raises:
        InvalidRequest: It holds NUL or half a surrogate pair.
    """
    if fault := text_fault(text):
        raise InvalidRequest([Problem(path=path, message=fault)])


def _problems(value: object, path: str, depth: int) -> Iterator[Problem]:
    if depth > _DEEPEST:
        yield Problem(path=path or "body", message=f"is nested more than {_DEEPEST} levels deep")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _text_problem(name, f"{path}/{name!r:.80}")
            yield from _problems(item, f"{path}/{name}" if path else name, depth + 1)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _problems(item, f"{path}[{position}]", depth + 1)
    elif isinstance(value, str):
        yield from _text_problem(value, path)
    elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
        yield Problem(path=path or "body", message="is an integer beyond 64 bit")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path=path or "body", message="is a number too large for any program")


def _text_problem(text: str, path: str) -> Iterator[Problem]:
    if fault := text_fault(text):
        # The path itself may be what is wrong: it has to be fit for an answer.
        shown = path.encode(errors="backslashreplace").decode().replace("\0", "\\0")
        yield Problem(path=shown or "body", message=fault[:400])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _invalid(f"has the name {twice!r:.80} twice in one object")
    return found


def _no_constant(word: str) -> float:
    raise _invalid(f"holds {word}, which is not JSON")


def _invalid(message: str, **where: int) -> InvalidRequest:
    return InvalidRequest([Problem(path="body", message=message, **where)])  # type: ignore[arg-type]


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
