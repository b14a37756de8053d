"""What a job puts in the places that the description which it shares with others leaves open.

Source: DIRAC's parametric jobs (`%s`, `%n`, `%(name)s`).
"""

import re
from collections import Counter
from collections.abc import Mapping

_PLACE = re.compile(r"%\((?P<name>[^()%]+)\)s|%(?P<short>[sn])")
_CUT = re.compile(r"%\(([A-Za-z]+)=\)s")

#: Value by name: `s` for `%s`, `n` for `%n`, `A` for `%(A)s`. What is no text takes a place as a whole.
Parameters = Mapping[str, object]


def fill(body: Mapping[str, object], parameters: Parameters | None) -> dict[str, object]:
    """The description of one job: the shared one with this job's values in it.

    Args:
        body: Keywords to JSON values; texts at any depth may hold placeholders.
        parameters: None: the job shares with nobody, so that its percent signs are its own.
    """
    if not parameters:
        return dict(body)
    return {name: _filled(value, parameters) for name, value in body.items()}


def _filled(value: object, parameters: Parameters) -> object:
    if isinstance(value, str):
        return _filled_text(value, parameters) if "%" in value else value
    if isinstance(value, Mapping):
        return {name: _filled(item, parameters) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(item, parameters) for item in value]
    return value


def _filled_text(text: str, parameters: Parameters) -> object:
    whole = _PLACE.fullmatch(text)
    return fill_text(text, parameters) if whole is None else parameters.get(_name(whole), text)


def count_places(value: object) -> tuple[int, Counter[str]]:
    """The characters of texts with placeholders in a value, at any depth, and how often each name has one."""
    characters = 0
    names: Counter[str] = Counter()
    left = [value]
    while left:
        match left.pop():
            case str() as text if "%" in text:
                characters += len(text)
                names.update(_name(place) for place in _PLACE.finditer(text))
            case Mapping() as record:
                left.extend(record.values())
            case list() | tuple() as items:
                left.extend(items)
    return characters, names


def fill_text(text: str, parameters: Parameters) -> str:
    """One text with its placeholders filled; those of unknown name stay as they are."""
    return _PLACE.sub(lambda place: str(parameters.get(_name(place), place[0])), text)


def fill_source(text: str, parameters: Parameters | None) -> str:
    """The text that a description came in, of one job of those whose texts differ in some values only.

    Where a value differed it has a placeholder `%(X=)s`; the name `X==` has the value as the user wrote it,
    where that is not how we write it.
    """
    if not parameters:
        return text
    return _CUT.sub(lambda place: _as_was_written(place, parameters), text)


def _as_was_written(place: re.Match[str], parameters: Parameters) -> str:
    """What stood there; what only looks like a placeholder stays."""
    found = (parameters[name] for name in (f"{place[1]}==", f"{place[1]}=") if name in parameters)
    value = next(found, None)
    return place[0] if value is None else as_written(value)


def as_written(value: object) -> str:
    """A value as it stands in a JDL: a text, a whole number or a list of texts."""
    if isinstance(value, list):
        return "{" + ", ".join(f'"{item}"' for item in value) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _name(place: re.Match[str]) -> str:
    return place["name"] or place["short"]
