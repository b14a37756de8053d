"""A job as expressions see it: the attributes that its description gives it."""

from collections.abc import Mapping

from requirements.errors import InvalidInput
from requirements.values import Value, as_value, fold

#: Keywords that take several values, of which users mostly state one and compare it as such.
_ONE_OR_MORE = frozenset({"site", "gridce", "platform", "outputse"})


def job_attributes(body: Mapping[str, object]) -> dict[str, Value]:
    """The attributes of a stored description; what is no plain value is left out."""
    found: dict[str, Value] = {}
    for name, raw in body.items():
        try:
            found[name] = as_value(attribute_value(name, raw), name)
        except InvalidInput:
            continue
    return found


def attribute_value(name: str, value: object) -> object:
    """The value of one keyword: of a place or storage element that stands alone, not a list."""
    if fold(name) in _ONE_OR_MORE and isinstance(value, list | tuple) and len(value) == 1:
        return value[0]
    return value
