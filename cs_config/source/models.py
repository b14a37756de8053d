"""Sections as input of pydantic models, and errors of the models as problems with path and line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from cs_config.source.sections import Leaf, LeafValue, Section, find_line
from requirements.errors import Problem, did_you_mean

Location = tuple[str, ...]

#: Message for a missing option.
MISSING = "this option is needed"


#: Our wording by pydantic's error type; other types keep pydantic's.
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


#: Location elements that pydantic adds for a union, and the error types of its members.
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
    """The problems of a section that a model found.

    `place` converts a location in the model to one in the section, where they differ.
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
    """The errors with their locations; of a union only the errors of its last type."""
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
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return message
    allowed = _ALLOWED.get(fault["type"]) or message.removeprefix("Input should be ")
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
    here = find_model(model, location[:-1])
    names = (field.alias or name for name, field in here.model_fields.items()) if here else ()
    return did_you_mean(location[-1], names)


def find_model(annotation: Any, names: Sequence[str]) -> type[BaseModel] | None:
    """The model of the section at a path below an annotated field; None if there is none."""
    model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    if not names:
        return model
    if model is not None:
        fields = {str(field.alias): field.annotation for field in model.model_fields.values()}
        return find_model(fields.get(names[0]), names[1:])
    return find_model(get_args(annotation)[1], names[1:]) if is_mapping(annotation) else None


def is_mapping(annotation: Any) -> bool:
    """Whether a field is a section whose names are data."""
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def model_section(section: Section) -> dict[str, object]:
    """A section as model input, its lists as tuples; an option with an empty value counts as not given."""
    return {
        name: _model_value(entry.value) if isinstance(entry, Leaf) else model_section(entry)
        for name, entry in section.entries.items()
        if not (isinstance(entry, Leaf) and entry.value is None)
    }


def _model_value(leaf: LeafValue) -> object:
    return tuple(leaf) if isinstance(leaf, list) else leaf
