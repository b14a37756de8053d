"""The Helm chart in `deploy/chart`, made from `deploy/kustomize`: `./dev docs` writes it.

The resources are those of the kustomization, each value that an installation states replaced by a place for
it; `values.yaml` has what stood there. A test compares the files with what this module would write.
"""

import copy
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

PROJECT: Final = Path(__file__).parents[2]
KUSTOMIZE: Final = PROJECT / "deploy" / "kustomize"
CHART: Final = PROJECT / "deploy" / "chart"
_MADE: Final = "# Written by `./dev docs` from deploy/kustomize: change it there."
_SERVE, _WORKER, _AGENT = (("Deployment", f"pilotage-{name}") for name in ("serve", "worker", "agent"))
_UPGRADE = ("Job", "pilotage-upgrade")
_PODS = (_SERVE, _WORKER, _AGENT, _UPGRADE)
_POD = ("spec", "template", "spec")
_CONTAINER = (*_POD, "containers", 0)

#: Of resources: their kind and name.
Key = tuple[str, str]
#: Keys and numbers that lead to a value in a resource.
Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A value of the chart: its name, its comment, and all places where it stands."""

    value: str
    meaning: str
    at: Sequence[tuple[Key, Steps]]

    @property
    def template(self) -> str:
        """JSON is YAML, whatever the value is."""
        return f"{{{{ .Values.{self.value} | toJson }}}}"


PLACES: Final = (
    Place(
        value="image",
        meaning="By its digest: what was tested runs.",
        at=[(key, (*_CONTAINER, "image")) for key in _PODS],
    ),
    Place(
        value="settings",
        meaning="Settings of all processes, each in capitals behind PILOTAGE_.",
        at=[(("ConfigMap", "pilotage"), ("data",))],
    ),
    Place(
        value="tree",
        meaning="The first configuration: VOs, sites, queues. Later changes by `pilotage config`.",
        at=[(("ConfigMap", "pilotage-resources"), ("data", "resources.yaml"))],
    ),
    Place(
        value="databaseSecret",
        meaning="Secret with PILOTAGE_DATABASE_URL, PILOTAGE_REDIS_URL and the credentials of the bucket.",
        at=[(key, (*_CONTAINER, "envFrom", 1, "secretRef", "name")) for key in _PODS],
    ),
    Place(
        value="keySecret",
        meaning="Secret with the signing key, signing-key.pem.",
        at=[(key, (*_POD, "volumes", 2, "secret", "secretName")) for key in _PODS],
    ),
    Place(
        value="host",
        meaning="Host name of the ingress, and the Secret with its certificate.",
        at=[
            (("Ingress", "pilotage"), ("spec", "tls", 0, "hosts", 0)),
            (("Ingress", "pilotage"), ("spec", "rules", 0, "host")),
        ],
    ),
    Place(
        value="certificateSecret",
        meaning="",
        at=[(("Ingress", "pilotage"), ("spec", "tls", 0, "secretName"))],
    ),
    Place(
        value="serve.fewest",
        meaning="Pods of the service, by their CPU.",
        at=[(("HorizontalPodAutoscaler", "pilotage-serve"), ("spec", "minReplicas"))],
    ),
    Place(
        value="serve.most",
        meaning="",
        at=[(("HorizontalPodAutoscaler", "pilotage-serve"), ("spec", "maxReplicas"))],
    ),
    Place(value="serve.resources", meaning="", at=[(_SERVE, (*_CONTAINER, "resources"))]),
    Place(value="worker.replicas", meaning="", at=[(_WORKER, ("spec", "replicas"))]),
    Place(value="worker.resources", meaning="", at=[(_WORKER, (*_CONTAINER, "resources"))]),
    Place(value="agent.replicas", meaning="", at=[(_AGENT, ("spec", "replicas"))]),
    Place(value="agent.resources", meaning="", at=[(_AGENT, (*_CONTAINER, "resources"))]),
    Place(
        value="upgrade.args",
        meaning="What a Job runs before each release: after a restored backup [db, recover].",
        at=[(_UPGRADE, (*_CONTAINER, "args"))],
    ),
    Place(value="upgrade.resources", meaning="", at=[(_UPGRADE, (*_CONTAINER, "resources"))]),
)
#: A Job does not change, so each release of the chart has one of its own.
_JOB_NAME: Final = f"{_UPGRADE[1]}-{{{{ .Release.Revision }}}}"
#: Templates, with the file that each is made from. The resources of the last need an operator.
_FILES: Final[Mapping[str, str]] = {
    "settings": "base/settings.yaml",
    "upgrade": "base/upgrade.yaml",
    "serve": "base/serve.yaml",
    "worker": "base/worker.yaml",
    "agent": "base/agent.yaml",
    "ingress": "example/ingress.yaml",
    "monitoring": "monitoring/service-monitor.yaml",
}
_OPTIONAL: Final = "monitoring"


def write_files() -> Mapping[str, str]:
    """The files of the chart, by their path in it."""
    read = {name: _read(file) for name, file in _FILES.items()}
    values = _take_values({_key(each): each for resources in read.values() for each in resources})
    files = {
        "Chart.yaml": f"{_MADE}\n{_dump(_describe())}",
        "values.yaml": f"{_MADE}\n{_dump_values(values)}",
    }
    for name, resources in read.items():
        text = "---\n".join(map(_dump, resources))
        for place in PLACES:
            text = text.replace(f"'{place.template}'", place.template)
        text = text.replace(f"'{_JOB_NAME}'", _JOB_NAME)
        if name == _OPTIONAL:
            text = f"{{{{- if .Values.{_OPTIONAL} }}}}\n{text}{{{{- end }}}}\n"
        files[f"templates/{name}.yaml"] = f"{_MADE}\n{text}"
    return files


def _read(file: str) -> list[dict[str, Any]]:
    resources = list(yaml.safe_load_all((KUSTOMIZE / file).read_text()))
    for each in resources:
        _label(each)
    return resources


def _label(resource: dict[str, Any]) -> None:
    """As the kustomization does with `labels` and `includeTemplates`."""
    [labels] = yaml.safe_load((KUSTOMIZE / "base" / "kustomization.yaml").read_text())["labels"]
    template = resource.get("spec", {}).get("template")
    for metadata in (resource["metadata"], *([template["metadata"]] if template else [])):
        metadata["labels"] = {**metadata.get("labels", {}), **labels["pairs"]}


def _key(resource: Mapping[str, Any]) -> Key:
    return resource["kind"], resource["metadata"]["name"]


def _take_values(resources: Mapping[Key, dict[str, Any]]) -> dict[str, Any]:
    """Put the templates into the resources; what stood there, by the names of the values."""
    values: dict[str, Any] = {}
    for place in PLACES:
        *groups, last = place.value.split(".")
        within = values
        for group in groups:
            within = within.setdefault(group, {})
        for key, (*steps, step) in place.at:
            holder: Any = resources[key]
            for each in steps:
                holder = holder[each]
            within[last] = copy.deepcopy(holder[step])
            holder[step] = place.template
    resources[_UPGRADE]["metadata"]["name"] = _JOB_NAME
    [image] = yaml.safe_load((KUSTOMIZE / "example" / "kustomization.yaml").read_text())["images"]
    return {**values, "image": f"{image['newName']}@{image['digest']}", _OPTIONAL: False}


def _describe() -> dict[str, Any]:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    number, _, stage = version.partition(".dev")
    return {
        "apiVersion": "v2",
        "name": "pilotage",
        "description": "All processes of Pilotage; PostgreSQL, Redis and a bucket are yours",
        "type": "application",
        "version": f"{number}.0{f'-dev.{stage}' if stage else ''}" if number.count(".") == 1 else version,
        "appVersion": version,
    }


def _dump_values(values: Mapping[str, Any]) -> str:
    meanings = {place.value.split(".")[0]: place.meaning for place in reversed(PLACES) if place.meaning}
    meanings[_OPTIONAL] = "Whether Prometheus' operator is there, and the Secret `pilotage-monitor`."
    return "".join(
        (f"# {meanings[name]}\n" if name in meanings else "") + _dump({name: value})
        for name, value in values.items()
    )


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as a block, which can be read."""


def _write_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def _dump(value: Mapping[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000)


if __name__ == "__main__":
    (CHART / "templates").mkdir(parents=True, exist_ok=True)
    for file, content in write_files().items():
        (CHART / file).write_text(content, encoding="utf-8")
    sys.stdout.write(f"The chart is in {CHART}\n")
