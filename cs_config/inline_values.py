"""A single value as a person writes it in one line: `8000`, `[el8, el9]`, `{Policy: level0}`, `null`."""

from cs_config import source, yaml_text
from cs_config.sections import plain
from requirements.errors import InvalidRequest
from requirements.problem import Problem

_NAME = "value"


def read(written: str, path: str) -> object:
    """The value that is written so: as it would be in the file.

    Raises:
        InvalidRequest: It is not one value.
    """
    reading = source.read(f"{_NAME}: {written}", "")
    tree = plain(reading.root)
    if reading.problems or not isinstance(tree, dict) or list(tree) != [_NAME]:
        why = reading.problems[0].message if reading.problems else "it is more than one value"
        raise InvalidRequest([Problem(path=path, message=f"{written!r:.200} is no value: {why}")])
    return tree[_NAME]


def write(value: object) -> str:
    """What `read` makes the value of."""
    return yaml_text.in_line({_NAME: value})[len(_NAME) + 3 : -1]
