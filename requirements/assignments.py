"""Values as people write them for descriptions of jobs: `Memory=6000`."""

import json
from collections.abc import Iterable

from requirements.quantities import VERSIONS
from requirements.values import fold
from requirements.written_reals import read_real


def parse_assignments(words: Iterable[str]) -> dict[str, object]:
    """Values by name of words such as `Memory=6000`: numbers, JSON, else texts; None for an empty one.

    A real number keeps its text, and a version is its text alone: as a number 12.10 would be 12.1.
    ValueError: a word has no name, or no `=`; its text is the word.
    """
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(repr(word))
        found[name.strip()] = _parse(value.strip(), is_version=fold(name.strip()) in VERSIONS)
    return found


def _parse(text: str, *, is_version: bool) -> object:
    if not text:
        return None
    try:
        value: object = json.loads(text, parse_float=read_real)
    except ValueError:
        return text
    return text if is_version and isinstance(value, float) else value
