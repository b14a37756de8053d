"""The Deployment of `deploy/kustomize` is restarted and grows, pod by pod: each request has an answer."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from examples.servers.starting import wait_until
from tests.acceptance.campaign import site
from tests.support.installation import Installation
from tests.support.servers import kubernetes
from tests.support.servers.kubernetes import Endpoints, Pod
from tests.support.service import NO_AUTHORITIES

BASE = kubernetes.read_resources(kubernetes.KUSTOMIZE / "base")
SERVE = kubernetes.find(BASE, "Deployment", "pilotage-serve")["spec"]
UPGRADE = kubernetes.find(BASE, "Job", "pilotage-upgrade")["spec"]["template"]["spec"]["containers"][0]
REPLICAS = kubernetes.find(BASE, "HorizontalPodAutoscaler", "pilotage-serve")["spec"]["minReplicas"]
QUEUE = {"Site": site.PLAIN, "GridCE": "ce", "Queue": "q", "CPUTime": 100_000}
JOB = {"jobs": [{"Executable": "/bin/true"}]}


@dataclass
class Requests:
    """Requests that clients send one after the other, and what became of them."""

    url: str
    answered: int = 0
    failed: list[str] = field(default_factory=list)  #: without an answer, or with an error of the service
    _stop: threading.Event = field(default_factory=threading.Event)

    def send(self, method: str, path: str, token: str, body: object) -> None:
        with httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {token}", "Request-Timeout": "60"},
            verify=NO_AUTHORITIES,
            trust_env=False,
            timeout=300,
        ) as client:
            while not self._stop.is_set():
                try:
                    answer = client.request(method, path, json=body)
                except httpx.TransportError as error:
                    self.failed.append(f"{method} {path}: {error!r}")
                else:
                    self.answered += 1
                    if answer.is_server_error:
                        self.failed.append(f"{method} {path}: {answer.status_code} {answer.text}")

    def wait_for_more(self) -> None:
        enough = self.answered + 20
        wait_until(lambda: self.answered > enough)

    def stop(self) -> None:
        self._stop.set()


@dataclass
class Cluster:
    """The pods of the Deployment, and its Service."""

    installation: Installation
    service: Endpoints
    pods: list[Pod] = field(default_factory=list)

    def start_pod(self) -> Pod:
        """As the Deployment does for one replica more: the Service leads to it once it is ready."""
        log = self.installation.home / f"serve{len(self.pods)}.log"
        pod = Pod(SERVE["template"]["spec"], self.installation.environment, log)
        pod.start()
        self.pods.append(pod)
        pod.wait_until_ready()
        self.service.add(pod)
        return pod

    def end_pod(self, pod: Pod, requests: Requests) -> None:
        """As the kubelet does, while the Service leads to the pod until its probe fails."""
        requests.wait_for_more()  # while preStop sleeps
        pod.terminate()
        assert pod.wait_until_not_ready(), "it ended before the Service could notice"
        requests.wait_for_more()
        self.service.remove(pod)
        assert pod.wait() == 0
        self.pods.remove(pod)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    resources = tmp_path / "resources.yaml"
    resources.write_text(site.LASTING)
    settings = kubernetes.find(BASE, "ConfigMap", "pilotage")["data"]
    here = {
        "HOME": tmp_path,
        "KEY": tmp_path / "key.pem",
        "BLOBS": tmp_path / "blobs",
        "RESOURCES": resources,
    }
    env = {**settings, **{f"PILOTAGE_{name}": str(path) for name, path in here.items()}}
    # Longer than shipped: the machine may stand still while a pod ends.
    env |= {"PILOTAGE_SHUTDOWN_DELAY": "25", "PILOTAGE_SHUTDOWN_GRACE": "250"}
    with ExitStack() as stack:
        installation = Installation(tmp_path, env, stack)
        installation.run(*UPGRADE["args"])
        cluster = Cluster(installation, stack.enter_context(Endpoints().serving()))
        stack.callback(lambda: [pod.kill() for pod in cluster.pods])
        for _ in range(REPLICAS):
            cluster.start_pod()
        yield cluster


@contextmanager
def sending(cluster: Cluster) -> Iterator[Requests]:
    user = cluster.installation.token("user", "--vo", site.VO, "--user", "ada")
    pilot = cluster.installation.token("pilot", "--vo", site.VO, "--queue", f"{site.PLAIN}/ce/q")
    requests = Requests(cluster.service.url)
    kinds = (
        ("GET", "/jobs?limit=1", user, None),
        ("POST", "/jobs", user, JOB),
        ("POST", "/matcher/requestJob", pilot, QUEUE),
    )
    with ThreadPoolExecutor(len(kinds)) as threads:
        running = [threads.submit(requests.send, *kind) for kind in kinds]
        try:
            yield requests
        finally:
            requests.stop()
        for each in running:
            each.result()


def test_a_rolling_restart_and_a_pod_more_leave_no_request_without_an_answer(cluster: Cluster) -> None:
    assert SERVE["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    with sending(cluster) as requests:
        for former in list(cluster.pods):
            cluster.start_pod()
            cluster.end_pod(former, requests)
        cluster.start_pod()
        requests.wait_for_more()
    assert len(cluster.pods) == REPLICAS + 1
    assert requests.failed == []
