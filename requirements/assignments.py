"""Values as people write them for descriptions of jobs: `Memory=6000`."""

import json
from collections.abc import Iterable


def parse_assignments(words: Iterable[str]) -> dict[str, object]:
    """Values by name of words such as `Memory=6000`: numbers, JSON, else texts; None for an empty one.

    ValueError: a word has no name, or no `=`; its text is the word.
    """
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(repr(word))
        found[name.strip()] = _parse(value.strip())
    return found


def _parse(text: str) -> object:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
