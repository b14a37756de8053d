"""Attributes of a job in expressions, from its description."""

from collections.abc import Mapping

from requirements.errors import InvalidInput
from requirements.values import Value, as_value, fold

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
