"""Scenarios of what DIRAC answers: jobs and the resources that meet them, and what task queues weigh."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[2] / "data"


@cache
def load(name: str) -> Any:
    """The data of a file, which nobody changes."""
    return yaml.load((DATA / name).read_text(), yaml.CSafeLoader)
