"""What pydantic says about a section, told as problems with path, line and suggestion."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from cs_config.source.sections import Section, find_line
from requirements.errors import Problem, did_you_mean

Location = tuple[str, ...]

#: About an option that is not there.
MISSING = "this option is needed"


#: In our words, by pydantic's type of fault; the others have good words of their own.
_ALLOWED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "tuple_type": "a list: [one, two]",
    "mapping_type": "a section",
    "model_type": "a section",
    "dict_type": "a section",
    "model_attributes_type": "a section",
}


#: What pydantic puts behind the place of a value that may be of several types, and how it calls their faults.
_TYPES = {"int": "int", "float": "float", "str": "string", "bool": "bool"}


def list_problems(
    error: ValidationError,
    model: type[BaseModel],
    section: Section,
    *,
    path: str,
    file: str,
    place: Callable[[Location], Location] = lambda location: location,
) -> Iterator[Problem]:
    """Each fault that the model found in the section.

    Args:
        error: What validation raised.
        model: What was validated.
        section: Where it was read from.
        path: Path of the section.
        file: File of the section.
        place: Turns a location in the model into one in the section, where they differ.
    """
    for inside, fault in _single_faults(error):
        location = place(inside)
        yield Problem(
            path="/".join((path, *location)),
            message=_message(fault),
            suggestion=_suggestion(fault["type"], inside, model),
            file=file,
            line=find_line(section, location),
        )


def _single_faults(error: ValidationError) -> Iterator[tuple[Location, Any]]:
    """The faults with where they are; of a value that may be of several types only the last type's."""
    found: dict[tuple[Location, str], Any] = {}
    for fault in error.errors(include_url=False, include_context=False):
        inside = tuple(str(part) for part in fault["loc"])
        is_of_type = inside and _TYPES.get(inside[-1]) == fault["type"].partition("_")[0]
        found[(inside[:-1], "") if is_of_type else (inside, fault["type"])] = fault
    return ((inside, fault) for (inside, _), fault in found.items())


def _message(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown option"
    if fault["type"] == "missing":
        return MISSING
    said = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return said
    allowed = _ALLOWED.get(fault["type"]) or said.removeprefix("Input should be ")
    return f"{_format_seen(fault['input'])} is not allowed here, allowed is {allowed}"


def _format_seen(raw: object) -> str:
    if isinstance(raw, dict):
        return "a section"
    if isinstance(raw, tuple):
        return f"[{', '.join(str(item) for item in raw)}]"[:80]
    return repr(raw)[:80]


def _suggestion(kind: str, location: Location, model: type[BaseModel]) -> str | None:
    if kind != "extra_forbidden":
        return None
    here: type[BaseModel] | None = model
    for name in location[:-1]:
        here = _below(here, name)
    names = (field.alias or name for name, field in here.model_fields.items()) if here else ()
    return did_you_mean(location[-1], names)


def _below(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    """The model of the section `name`; the same one where names are the data."""
    if model is None:
        return None
    for field in model.model_fields.values():
        if field.alias == name:
            annotation = field.annotation
            arguments = getattr(annotation, "__args__", ())
            kind = arguments[-1] if arguments else annotation
            return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return model
