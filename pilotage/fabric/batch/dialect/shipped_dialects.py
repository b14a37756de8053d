"""The dialects that come with the program: data, which a site may change where its own system differs."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from pilotage.fabric.batch.dialect.dialect import Dialect

NAMES = ("lsf", "pbs")


@cache
def content(name: str) -> Mapping[str, Any]:
    """What a shipped dialect says, as it could stand in a file of a site."""
    file = resources.files(__package__) / "shipped" / f"{name}.yaml"
    said: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return said


def dialect(name: str) -> Dialect:
    """A shipped dialect as it is."""
    return Dialect.model_validate(content(name))
