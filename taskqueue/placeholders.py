"""What a member of a parametric job puts in the places that its description leaves open.

Source: DIRAC's parametric jobs (`%s`, `%n`, `%(name)s`).
"""

import re
from collections.abc import Mapping

_PLACE = re.compile(r"%\((?P<name>[^()%]+)\)s|%(?P<short>[sn])")


def fill(body: Mapping[str, object], parameters: Mapping[str, str] | None) -> dict[str, object]:
    """The description of one job: that of the submission with this member's values in it.

    Args:
        body: Keywords to JSON values; texts at any depth may hold placeholders.
        parameters: Value by name: `s` for `%s`, `n` for `%n`, `A` for `%(A)s`. None: no parametric job,
            so that its percent signs are its own.
    """
    if not parameters:
        return dict(body)
    return {name: _filled(value, parameters) for name, value in body.items()}


def _filled(value: object, parameters: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return fill_text(value, parameters) if "%" in value else value
    if isinstance(value, Mapping):
        return {name: _filled(item, parameters) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(item, parameters) for item in value]
    return value


def fill_text(text: str, parameters: Mapping[str, str]) -> str:
    """One text with its placeholders filled; those of unknown name stay as they are."""
    return _PLACE.sub(lambda place: parameters.get(place["name"] or place["short"], place[0]), text)
