"""What is wrong with an input that a model has refused, in our words: what was seen, and what is allowed.

Made from pydantic's errors, which are mappings, so that nothing is imported for it. A value that may be of
several types has one fault, not one for each type.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from requirements.errors import did_you_mean

Location = tuple[int | str, ...]

#: Types of errors where names with values are needed.
SECTIONS: Final = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")
#: What is allowed, by pydantic's type of error, with the names of its context; others keep pydantic's words.
ALLOWED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list: [one, two]"),
    **dict.fromkeys(SECTIONS, "a mapping of names to values"),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"),
        "a time with its zone: 2026-03-28T12:00:00Z",
    ),
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "a date: 2026-03-28"),
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_too_short": "a text of {min_length} or more characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "too_short": "{things} of {min_length} or more",
    "too_long": "{things} of at most {max_length}",
}
#: A month as a text.
MONTH: Final = "^2[0-9]{3}-(0[1-9]|1[0-2])$"
#: What is allowed by patterns that people have to write.
_BY_PATTERN: Final[Mapping[object, str]] = {MONTH: "a month: 2026-10"}
_UNKNOWN_NAMES: Final = ("extra_forbidden", "unexpected_keyword_argument")
#: Messages that name no value.
_WHOLE: Final[Mapping[str, str]] = {
    **dict.fromkeys(_UNKNOWN_NAMES, "unknown name"),
    "missing": "is needed",
}
#: Characters of a refused value in the message.
_SHOWN: Final = 200
#: Type of an error of a validator of ours about a value that may have secrets: it is not repeated.
SECRET: Final = "secret_value"  # noqa: S105 - the name of a type
#: Errors whose words are those of a validator of ours, or of a reader.
_OWN_WORDS: Final = frozenset({"value_error", "json_invalid", SECRET})
_QUOTED = re.compile("'([^']*)'")
#: What pydantic adds to a location for a type of a union that has several.
_TYPE = re.compile(r"(constrained-)?(int|float|str|bool)|none|literal\[.*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFault:
    """A fault of an input at one place."""

    location: Location
    message: str
    suggestion: str | None = None  #: the value probably meant
    is_unknown_name: bool = False  #: whether nothing has the name that ends the location


def list_faults(errors: Iterable[Mapping[str, Any]]) -> list[InputFault]:
    """The faults of an input that pydantic's errors tell of."""
    by_place: dict[Location, list[Mapping[str, Any]]] = {}
    for each in errors:
        place = tuple(each["loc"])
        is_of_union = len(place) > 1 and isinstance(place[-1], str) and _TYPE.fullmatch(place[-1])
        by_place.setdefault(place[:-1] if is_of_union else place, []).append(each)
    return [_describe(place, found) for place, found in by_place.items()]


def _describe(place: Location, found: Sequence[Mapping[str, Any]]) -> InputFault:
    first = found[0]
    seen = first.get("input")
    if message := _WHOLE.get(first["type"]):
        return InputFault(location=place, message=message, is_unknown_name=first["type"] in _UNKNOWN_NAMES)
    if first["type"] in _OWN_WORDS:
        return InputFault(location=place, message=_repeat_own(first, seen))
    names = [name for each in found for name in _QUOTED.findall(str(each.get("ctx", {}).get("expected", "")))]
    allowed = " or ".join(dict.fromkeys(map(describe_allowed, found)))
    return InputFault(
        location=place,
        message=f"{seen!r:.{_SHOWN}} is not allowed, allowed is {allowed}",
        suggestion=did_you_mean(seen, names) if names and isinstance(seen, str) else None,
    )


def _repeat_own(each: Mapping[str, Any], seen: object) -> str:
    """The words of a validator, with the value if they do not name it, or of the reader of JSON."""
    said = str(each["msg"]).removeprefix("Value error, ")
    if each["type"] == "json_invalid":
        return f"{said}: {each['ctx']['error']}"
    is_plain = each["type"] != SECRET and isinstance(seen, str | int | float) and str(seen) not in said
    return f"{said}, not {seen!r:.{_SHOWN}}" if is_plain else said


def describe_allowed(each: Mapping[str, Any]) -> str:
    """What one of pydantic's errors would allow."""
    context: Mapping[str, object] = each.get("ctx") or {}
    if words := _BY_PATTERN.get(context.get("pattern")):
        return words
    form = ALLOWED.get(each["type"])
    if form is None:
        return str(each["msg"]).removeprefix("Input should be ")
    things = "a mapping" if context.get("field_type") == "Dictionary" else "a list"
    return form.format_map({name: _as_whole(value) for name, value in context.items()} | {"things": things})


def _as_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value
