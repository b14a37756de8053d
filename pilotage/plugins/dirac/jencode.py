"""DIRAC's wire: a form with the method and JEncode text of its arguments, answered by JEncode of a result.

JEncode is JSON with dates and bytes as objects `{"__dCls": …, "obj": …}`. DIRAC's own decoder imports the
module that any other `__dCls` names: here that is an error.

Source: DIRAC 9.1, `Core/Utilities/JEncode.py`, `Core/Tornado`.
"""

import json
import math
import re
from base64 import b64decode, b64encode
from binascii import a2b_qp
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from cs_config.options import bounds
from pilotage.service import routing
from requirements.errors import InvalidRequest, Problem

#: DIRAC's numbers of errors with their texts.
ERRORS: Final[Mapping[int, str]] = {
    1501: "Invalid JDL",
    1503: "Job submission error",
    1510: "No match found",
    1511: "Pilot version does not match",
    1550: "No pilots found",
}
INVALID_JDL, SUBMISSION, NO_MATCH, PILOT_VERSION, NO_PILOT = ERRORS

_CLASS: Final = "__dCls"
_MOMENT: Final = "%Y-%m-%d %H:%M:%S"
_DAY: Final = "%Y-%m-%d"
#: What cannot be stored in a text: NUL and halves of surrogate pairs.
_UNSTORABLE: Final = re.compile("[\\0\ud800-\udfff]")
#: Deepest nesting of lists and objects, and the largest integer of the databases.
_DEEPEST, _MAX_INTEGER = 64, 2**63 - 1
#: Fields of one form.
_FIELDS: Final = 20

#: A result of DIRAC: `OK` with `Value`, or with `Errno` and `Message`; clients read further keys of some.
Result = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One call as it was sent."""

    method: str
    arguments: tuple[object, ...]
    #: Of a host that acts for others, `("DN", "group")`; of others the name of a group; None: neither.
    credentials: tuple[str, str] | str | None = None


def ok(value: object = None, **more: object) -> Result:
    """A good result."""
    return {"OK": True, "Value": value, **more}


def error(message: str, number: int = 0, **more: object) -> Result:
    """A refusal, with the text of its number as DIRAC writes it."""
    text = f"{ERRORS[number]} ( {number} : {message})" if number else message
    return {"OK": False, "Errno": number, "Message": text, **more}


def read_form(body: bytes) -> Form:
    """Parse a form; `InvalidRequest` for one that no client of DIRAC sends."""
    fields = _read_fields(body)
    method = fields.get("method", "")
    arguments = decode(fields.get("args", "[]"))
    if not isinstance(arguments, list):
        raise _invalid("args", "is not a list")
    return Form(method=method, arguments=tuple(arguments), credentials=_read_credentials(fields))


def _read_fields(body: bytes) -> Mapping[str, str]:
    """The fields of a form; of those with one name the first."""
    found: dict[str, str] = {}
    for each in body.split(b"&", _FIELDS):
        name, equals, value = each.partition(b"=")
        if not equals or len(found) == _FIELDS:
            raise _invalid("body", f"is not a form of at most {_FIELDS} fields")
        try:
            found.setdefault(_unquote(name), _unquote(value))
        except UnicodeDecodeError as fault:
            raise _invalid("body", f"is not a form: {fault.reason}") from None
    return found


def _unquote(text: bytes) -> str:
    """Replace the escapes of a form; as quoted-printable, since urllib takes 200 bytes of memory for each."""
    return a2b_qp(text.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"=")).decode()


def _read_credentials(fields: Mapping[str, str]) -> tuple[str, str] | str | None:
    given = decode(fields.get("extraCredentials", "null"))
    if given is None or isinstance(given, str):
        return given or None
    if isinstance(given, list) and len(given) == 2 and all(isinstance(each, str) for each in given):
        return given[0], given[1]
    raise _invalid("extraCredentials", "is neither a name nor a DN with a group")


def encode(value: object) -> bytes:
    """JEncode text of a value; moments in UTC without fractions."""
    return json.dumps(value, default=_encode_other).encode()


def _encode_other(value: object) -> object:
    if isinstance(value, datetime):
        return {_CLASS: "dt", "obj": value.astimezone(UTC).strftime(_MOMENT)}
    if isinstance(value, date):
        return {_CLASS: "date", "obj": value.strftime(_DAY)}
    if isinstance(value, bytes):
        return {_CLASS: "b64", "obj": b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no form in JEncode")


def decode(text: str) -> object:
    """The value of a JEncode text; `InvalidRequest` if it is not JSON, too large, or for a foreign `__dCls`.

    Outputs and measured values of payloads hold anything, and a refused heartbeat would cost the job: what
    cannot be stored is replaced in texts, and a number that is not finite is none.
    """
    return _decode(text, most=bounds.JSON_VALUES, largest=_MAX_INTEGER)


def decode_result(text: str) -> Result:
    """A result of DIRAC's own services, which may be far larger than a form; `InvalidRequest`."""
    found = _decode(text, most=bounds.FORMER_VALUES, largest=math.inf)
    if isinstance(found, dict):
        if found.get("OK") is True and "Value" in found:
            return found
        if found.get("OK") is False and "Message" in found:
            return found
    raise _invalid("OK", "this is no result of DIRAC, with Value or Message")


def _decode(text: str, *, most: int, largest: float) -> object:
    routing.check_size(text.encode(errors="replace"), most=most)
    try:
        read = json.loads(text)
    except RecursionError:
        raise _invalid("args", "is nested too deeply") from None
    except ValueError as fault:  # also an integer of thousands of digits
        raise _invalid("args", f"is not JSON: {fault!s:.200}") from None
    return _read_objects(read, 0, largest)


def _read_objects(read: object, depth: int, largest: float) -> object:
    if depth > _DEEPEST:
        raise _invalid("args", f"is nested more than {_DEEPEST} levels deep")
    if isinstance(read, list):
        return [_read_objects(each, depth + 1, largest) for each in read]
    if not isinstance(read, dict):
        return _read_scalar(read, largest)
    if _CLASS not in read:
        return {
            _UNSTORABLE.sub("\ufffd", name): _read_objects(each, depth + 1, largest)
            for name, each in read.items()
        }
    name, text = read[_CLASS], read.get("obj")
    if not isinstance(name, str) or name not in _READERS or not isinstance(text, str):
        raise _invalid("args", f"{_CLASS} {name!r:.80} is none of {', '.join(_READERS)} with a text")
    try:
        return _READERS[name](text)
    except ValueError as fault:
        raise _invalid("args", f"{_CLASS} {name}: {fault!s:.200}") from None


def _read_scalar(read: object, largest: float) -> object:
    if isinstance(read, str):
        return _UNSTORABLE.sub("\ufffd", read)
    if isinstance(read, float) and not math.isfinite(read):
        return None
    if isinstance(read, int) and abs(read) > largest:
        raise _invalid("args", "holds an integer beyond 64 bit")
    return read


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "dt": lambda text: datetime.strptime(text, _MOMENT).replace(tzinfo=UTC),
    "date": lambda text: datetime.strptime(text, _DAY).replace(tzinfo=UTC).date(),
    "b64": lambda text: b64decode(text, validate=True),
}


def _invalid(path: str, message: str) -> InvalidRequest:
    return InvalidRequest([Problem(path=path, message=message)])
