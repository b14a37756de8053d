"""The Helm chart is the kustomization, with places for what an installation states."""

import copy
import json
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import SchemaNotFoundError

from docs.reference import chart
from tests.support.servers import kubernetes
from tests.support.servers.kubernetes import KUSTOMIZE

VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text())
PART_OF = "app.kubernetes.io/part-of"
REVISION = 7
OPTIONAL = re.compile(r"\{\{- if \.Values\.(\w+) \}\}\n(.*)\{\{- end \}\}\n", re.DOTALL)
VALUE = re.compile(r"\{\{ \.Values\.([\w.]+) \| toJson \}\}")

Rendered = dict[tuple[str, str], Any]


def find_value(values: Mapping[str, Any], name: str) -> Any:
    found: Any = values
    for each in name.split("."):
        found = found[each]
    return found


def render_here(values: Mapping[str, Any]) -> str:
    """The few forms that the templates have, without Helm; any other one is left and is no YAML."""
    made = []
    for file in sorted((chart.CHART / "templates").iterdir()):
        text = OPTIONAL.sub(lambda found: found[2] if values[found[1]] else "", file.read_text())
        text = text.replace("{{ .Release.Revision }}", str(REVISION))
        made.append(VALUE.sub(lambda found: json.dumps(find_value(values, found[1])), text))
    return "---\n".join(made)


def render_by_helm(values: Mapping[str, Any]) -> str:
    """What Helm itself makes of them (PyPI: helm-python-sdk)."""
    loaded = import_module("helm_python").Chart.load(str(chart.CHART))
    made: dict[str, str] = loaded.render(dict(values), name="pilotage", namespace="grid", revision=REVISION)
    return "\n---\n".join(made.values())


needs_helm = pytest.mark.skipif(
    find_spec("helm_python") is None, reason="no helm-python-sdk here; the test's own rendering is compared"
)


@pytest.fixture(params=[render_here, pytest.param(render_by_helm, marks=needs_helm)])
def render(request: pytest.FixtureRequest) -> Callable[[Mapping[str, Any]], Rendered]:
    def read(values: Mapping[str, Any]) -> Rendered:
        resources = [each for each in yaml.safe_load_all(request.param(values)) if each]
        return {(each["kind"], each["metadata"]["name"]): each for each in resources}

    return read


Render = Callable[[Mapping[str, Any]], Rendered]


def test_the_chart_is_what_the_kustomization_makes() -> None:
    written = {
        str(each.relative_to(chart.CHART)): each.read_text()
        for each in chart.CHART.rglob("*")
        if each.is_file()
    }
    assert written == chart.write_files(), "./dev docs"


def test_with_its_values_it_has_the_resources_of_the_kustomization(render: Render) -> None:
    expected: Rendered = {}
    for each in (
        *kubernetes.read_resources(KUSTOMIZE / "base"),
        *yaml.safe_load_all((KUSTOMIZE / "example" / "ingress.yaml").read_text()),
        *kubernetes.read_resources(KUSTOMIZE / "monitoring"),
    ):
        resource: Any = copy.deepcopy(each)
        template = resource.get("spec", {}).get("template")
        for metadata in (resource["metadata"], *([template["metadata"]] if template else [])):
            metadata.setdefault("labels", {})[PART_OF] = "pilotage"
        for container in template["spec"]["containers"] if template else []:
            container["image"] = VALUES["image"]
        if each["kind"] == "Job":
            resource["metadata"]["name"] += f"-{REVISION}"
        expected[each["kind"], resource["metadata"]["name"]] = resource
    assert render({**VALUES, "monitoring": True}) == expected
    assert expected.keys() - render(VALUES).keys() == {("ServiceMonitor", "pilotage")}


def test_what_it_makes_is_valid(render: Render) -> None:
    for (kind, _), each in render({**VALUES, "monitoring": True}).items():
        try:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
        except SchemaNotFoundError:
            assert kind == "ServiceMonitor"


@pytest.mark.parametrize("place", chart.PLACES, ids=lambda place: place.value)
def test_each_value_reaches_each_of_its_places(render: Render, place: chart.Place) -> None:
    values = copy.deepcopy(VALUES)
    *groups, last = place.value.split(".")
    before = find_value(VALUES, place.value)
    text = "a: text with 'quotes', \"others\" and\nlines"
    changed = {int: 5, str: text, list: [text], dict: {"A": text}}[type(before)]
    (find_value(values, ".".join(groups)) if groups else values)[last] = changed
    made = render(values)
    for (kind, name), steps in place.at:
        found = made[kind, f"{name}-{REVISION}" if kind == "Job" else name]
        for step in steps:
            found = found[step]
        assert changed == found if not isinstance(changed, dict) else changed.items() <= found.items()
