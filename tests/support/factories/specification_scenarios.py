"""The scenarios of DiracX's match-making specification: `tests/data/specification_scenarios.yaml`."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / "data" / "specification_scenarios.yaml"
_ABSENT = "-"


@dataclass(frozen=True)
class SpecificationScenario:
    """A job's requirements and a node, in the specification's forms, and whether they fit."""

    name: str
    job: Mapping[str, Any]
    node: Mapping[str, Any]
    fits: bool


def _change(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(base))
    for path, value in changes.items():
        *sections, name = path.split("/")
        place = changed
        for section in sections:
            place = place.setdefault(section, {})
        if value == _ABSENT:
            place.pop(name, None)
        else:
            place[name] = copy.deepcopy(value)
    return changed


def _with_section(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Requirements that are not taken for a record: with a section."""
    filled = {name: value for name, value in job.items() if value != {}}
    has_section = any(isinstance(value, dict) for value in filled.values())
    return filled if has_section else filled | {"system": {"name": "Linux"}}


def _list() -> Iterator[SpecificationScenario]:
    stored = yaml.safe_load(FILE.read_text())
    for rule in stored["rules"]:
        job, node = (_change(stored[each], rule.get(each, {})) for each in ("job", "node"))
        for number, (of_job, wanted, of_node, has, fits) in enumerate(rule["cases"], 1):
            yield SpecificationScenario(
                name=f"{rule['rule']} {number}",
                job=_with_section(_change(job, {of_job: wanted})),
                node=_change(node, {of_node: has}),
                fits=fits,
            )


@cache
def read_scenarios() -> tuple[SpecificationScenario, ...]:
    """All scenarios."""
    return tuple(_list())
