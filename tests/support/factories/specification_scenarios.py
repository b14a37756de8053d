"""The scenarios of DiracX's match-making specification, with the examples of its first version.

They are in `tests/data/specification_scenarios.yaml` and `specification_examples.yaml`.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_DATA = Path(__file__).parents[2] / "data"
_ABSENT = "-"


@dataclass(frozen=True)
class SpecificationScenario:
    """A job's requirements and a node, in the specification's forms, and whether they fit."""

    name: str
    job: Mapping[str, Any]
    node: Mapping[str, Any]
    fits: bool
    sites: Sequence[str] = ()  #: of the job; any, if there is none

    @property
    def description(self) -> dict[str, Any]:
        """The whole job."""
        return {"executable": "x", "requirements": self.job} | ({"sites": self.sites} if self.sites else {})


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


def _list_rules() -> Iterator[SpecificationScenario]:
    stored = yaml.safe_load((_DATA / "specification_scenarios.yaml").read_text())
    for rule in stored["rules"]:
        job, node = (_change(stored[each], rule.get(each, {})) for each in ("job", "node"))
        for number, (of_job, wanted, of_node, has, fits) in enumerate(rule["cases"], 1):
            yield SpecificationScenario(
                name=f"{rule['rule']} {number}",
                job=_with_section(_change(job, {of_job: wanted})),
                node=_change(node, {of_node: has}),
                fits=fits,
            )


def _list_examples() -> Iterator[SpecificationScenario]:
    stored = yaml.safe_load((_DATA / "specification_examples.yaml").read_text())
    for name, job in stored["jobs"].items():
        assert stored["nodes"].keys() >= set(job["fits"])
        for node, offered in stored["nodes"].items():
            yield SpecificationScenario(
                name=f"example {name}, {node}",
                job=job["requirements"],
                node=offered,
                fits=node in job["fits"],
                sites=job.get("sites", ()),
            )


@cache
def read_scenarios() -> tuple[SpecificationScenario, ...]:
    """All scenarios."""
    return (*_list_rules(), *_list_examples())
