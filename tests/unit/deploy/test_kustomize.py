"""The kustomization in deploy/ is valid, closed, and gives processes the time that they need to end."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import SchemaNotFoundError

from cs_config import validate
from pilotage.cli.settings import PREFIX, model_with_plugins
from pilotage.service.routes import health
from tests.support.servers import kubernetes
from tests.support.servers.kubernetes import KUSTOMIZE, Resource

BASE = kubernetes.read_resources(KUSTOMIZE / "base")
EXAMPLE = kubernetes.read_resources(KUSTOMIZE / "example")
PILOTS = kubernetes.read_resources(KUSTOMIZE / "pilots")
#: What is applied by itself, with what its files have.
APPLIED = {"base": BASE, "example": EXAMPLE, "pilots": PILOTS}
#: The first version of Kubernetes that knows all fields without a feature gate: `sleep` of `preStop`.
OLDEST = "1.30"
SETTINGS = kubernetes.find(BASE, "ConfigMap", "pilotage")["data"]
SERVE = kubernetes.find(BASE, "Deployment", "pilotage-serve")["spec"]
#: Kinds of operators, for which the package of schemas has none: the fields that ours have of them. They were
#: validated against the definitions of Prometheus' operator 0.93 and of CloudNativePG of August 2026.
CUSTOM = {
    "ServiceMonitor": """
        selector.matchLabels endpoints.port endpoints.path endpoints.interval
        endpoints.authorization.credentials.name endpoints.authorization.credentials.key
    """,
    "Cluster": """
        instances postgresql.synchronous.method postgresql.synchronous.number
        postgresql.synchronous.dataDurability postgresql.parameters
        bootstrap.initdb.database bootstrap.initdb.owner storage.size
        resources.requests resources.limits affinity.topologyKey affinity.podAntiAffinityType
    """,
}


def list_pods() -> Iterator[tuple[str, Any]]:
    for each in BASE:
        if each["kind"] in ("Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def list_unchecked(resources: Sequence[Resource], version: str | None = None) -> set[str]:
    """Validate resources strictly by the schemas of a version, else the newest; the kinds without one."""
    unchecked = set()
    for each in resources:
        try:
            kubernetes_validate.validate(each, version or kubernetes_validate.latest_version(), strict=True)
        except SchemaNotFoundError:
            unchecked.add(each["kind"])
    return unchecked


@pytest.mark.parametrize("version", [OLDEST, None])
def test_all_resources_are_valid_and_have_no_unknown_field(version: str | None) -> None:
    assert list_unchecked(EXAMPLE, version) == CUSTOM.keys()
    assert list_unchecked(PILOTS, version) == set()


def test_the_page_names_the_oldest_version() -> None:
    page = KUSTOMIZE.parents[1] / "docs" / "operator" / "kubernetes.md"
    assert f"Kubernetes {OLDEST} or newer" in page.read_text()


def list_fields(value: Any) -> Iterator[str]:
    """Paths of the fields of a value, through lists."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from (f"{name}.{field}" for field in list_fields(each))
    for each in value if isinstance(value, list) else ():
        yield from list_fields(each)


@pytest.mark.parametrize("kind", CUSTOM)
def test_custom_resources_have_fields_that_their_operators_know(kind: str) -> None:
    [resource] = (each for each in EXAMPLE if each["kind"] == kind)
    known = CUSTOM[kind].split()
    unknown = [
        each
        for each in list_fields(resource["spec"])
        if not any(f"{field}.".startswith(f"{each}.") or each.startswith(f"{field}.") for field in known)
    ]
    assert unknown == []


def test_the_account_of_directors_may_do_what_their_client_does() -> None:
    rules = kubernetes.find(PILOTS, "Role", "pilotage-director")["rules"]
    rights = {(what, verb) for each in rules for what in each["resources"] for verb in each["verbs"]}
    assert rights == {
        *(("jobs", verb) for verb in ("create", "list", "patch", "delete")),
        *(("pods", "list"), ("resourcequotas", "list"), ("pods/log", "get")),
    }


def test_an_unknown_field_is_found() -> None:
    wrong = {**SERVE, "replica": 2}
    deployment = {**kubernetes.find(BASE, "Deployment", "pilotage-serve"), "spec": wrong}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        list_unchecked([deployment])


needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="no kubectl here; the files themselves are checked"
)


def make_resources(directory: Path) -> list[Resource]:
    """What kubectl would apply."""
    command = ["kubectl", "kustomize", str(directory)]
    made = subprocess.run(command, capture_output=True, check=True)
    return list(yaml.safe_load_all(made.stdout))


@needs_kubectl
@pytest.mark.parametrize("name", APPLIED)
def test_what_kubectl_makes_of_it_is_the_same_and_valid(name: str) -> None:
    made = make_resources(KUSTOMIZE / name)
    kinds = [each["kind"] for each in APPLIED[name]] + ["Secret"] * 2 * (name == "example")
    assert sorted(each["kind"] for each in made) == sorted(kinds)
    assert list_unchecked(made) <= CUSTOM.keys()


@needs_kubectl
def test_after_a_restored_backup_a_job_recovers_and_nothing_else_runs(tmp_path: Path) -> None:
    """As an operator puts it into an installation."""
    shutil.copytree(KUSTOMIZE, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "example" / "kustomization.yaml"
    file.write_text(file.read_text().replace("components: [", "components: [../recover, "))
    made = make_resources(tmp_path / "example")
    assert list_unchecked(made) <= CUSTOM.keys()
    pod = kubernetes.find(made, "Job", "pilotage-upgrade")["spec"]["template"]["spec"]
    [before], [then] = pod["initContainers"], pod["containers"]
    assert (before["args"], then["args"]) == (["db", "upgrade"], ["db", "recover"])
    assert {**before, "args": 0, "name": 0} == {**then, "args": 0, "name": 0}
    assert before["image"].startswith("registry.example.org/pilotage@sha256:")
    replicas = [each["spec"]["replicas"] for each in made if each["kind"] == "Deployment"]
    assert replicas == [0, 0, 0]


def test_every_kustomization_is_checked() -> None:
    checked = {KUSTOMIZE / each for each in (*APPLIED, "recover")}
    example = yaml.safe_load((KUSTOMIZE / "example" / "kustomization.yaml").read_text())
    checked |= {(KUSTOMIZE / "example" / each).resolve() for each in example["components"]}
    assert {each.parent for each in KUSTOMIZE.rglob("kustomization.yaml")} == checked


@pytest.mark.parametrize("pod", [pod for _, pod in list_pods()], ids=[name for name, _ in list_pods()])
def test_pods_have_no_rights_and_bounded_memory(pod: Any) -> None:
    [container] = pod["containers"]
    number = re.findall(r"^USER (\d+)$", (KUSTOMIZE.parent / "Dockerfile").read_text(), re.MULTILINE)
    assert [str(pod["securityContext"]["runAsUser"])] == number
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "PILOTAGE_PORT of the Service would be read as a setting"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    written = {each["name"] for each in pod["volumes"] if "emptyDir" in each}
    places = {each["mountPath"] for each in container["volumeMounts"] if each["name"] in written}
    assert {SETTINGS["PILOTAGE_HOME"], "/tmp"} <= places


@pytest.mark.parametrize("pod", [pod for _, pod in list_pods()], ids=[name for name, _ in list_pods()])
def test_pods_name_what_there_is(pod: Any) -> None:
    [container] = pod["containers"]
    volumes = {each["name"] for each in pod["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    maps = [each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each]
    maps += [each["configMapRef"]["name"] for each in container["envFrom"] if "configMapRef" in each]
    for name in maps:
        kubernetes.find(BASE, "ConfigMap", name)
    made = yaml.safe_load((KUSTOMIZE / "example" / "kustomization.yaml").read_text())
    secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    secrets |= {each["secretRef"]["name"] for each in container["envFrom"] if "secretRef" in each}
    assert secrets == {each["name"] for each in made["secretGenerator"]}
    [image] = (each for each in made["images"] if each["name"] == container["image"])
    assert image["digest"].startswith("sha256:")


def test_variables_are_settings() -> None:
    names = {PREFIX + name.upper() for name in model_with_plugins().model_fields}
    secrets = re.findall(
        rf"^({PREFIX}\w+)=", (KUSTOMIZE / "example" / "secrets.env").read_text(), re.MULTILINE
    )
    assert secrets
    assert {*SETTINGS, *secrets} <= names


def test_the_first_configuration_is_valid() -> None:
    text = kubernetes.find(BASE, "ConfigMap", "pilotage-resources")["data"]["resources.yaml"]
    validate.parse(text, "resources.yaml")


def test_probes_and_selectors_lead_somewhere() -> None:
    pod = SERVE["template"]
    [container] = pod["spec"]["containers"]
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    routes = {getattr(route, "path", None) for route in health.router.routes}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes
        assert container[probe]["httpGet"]["port"] in ports
    assert ports["http"] in container["args"]
    service = kubernetes.find(BASE, "Service", "pilotage")["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert {each["targetPort"] for each in service["ports"]} <= ports.keys()
    for each in BASE:
        if each["kind"] == "PodDisruptionBudget":
            name = each["metadata"]["name"]
            labels = kubernetes.find(BASE, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    scaled = kubernetes.find(BASE, "HorizontalPodAutoscaler", "pilotage-serve")["spec"]
    assert (scaled["scaleTargetRef"]["name"], "replicas" in SERVE) == ("pilotage-serve", False)


def test_a_pod_that_ends_has_the_time_that_its_settings_promise() -> None:
    pod = SERVE["template"]["spec"]
    [container] = pod["containers"]
    delay, grace = (float(SETTINGS[f"PILOTAGE_SHUTDOWN_{name}"]) for name in ("DELAY", "GRACE"))
    probe = container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < delay
    hook = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert hook + grace + 5 <= pod["terminationGracePeriodSeconds"]


def test_the_example_is_no_secret() -> None:
    for file in ("secrets.env", "signing-key.pem"):
        text = Path(KUSTOMIZE / "example" / file).read_text()
        assert "change" in text
        assert "PRIVATE KEY" not in text
