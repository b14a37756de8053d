"""The Deployments of `deploy/kustomize` are restarted, grow and shrink: each request has an answer.

On PostgreSQL and Redis, as any installation of several pods: a file of SQLite is on one host. Claims in the
event loop, and notifications by the database, exist only there.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, select

from agents import leader
from examples.servers.redis_server import RedisServer
from examples.servers.starting import wait_until
from taskqueue.db import agent_leases, database
from taskqueue.schema.tables import jobs
from tests.acceptance.campaign import site
from tests.support import databases
from tests.support.installation import Installation
from tests.support.servers import kubernetes
from tests.support.servers.kubernetes import Endpoints, Pod
from tests.support.service import NO_AUTHORITIES

BASE = kubernetes.read_resources(kubernetes.KUSTOMIZE / "base")
SERVE, *OTHERS = NAMES = ("pilotage-serve", "pilotage-worker", "pilotage-agent")
DEPLOYMENTS = {name: kubernetes.find(BASE, "Deployment", name)["spec"] for name in NAMES}
REPLICAS = {name: DEPLOYMENTS[name]["replicas"] for name in OTHERS} | {
    SERVE: kubernetes.find(BASE, "HorizontalPodAutoscaler", SERVE)["spec"]["minReplicas"]
}
UPGRADE = kubernetes.find(BASE, "Job", "pilotage-upgrade")["spec"]["template"]["spec"]["containers"][0]
#: Agents that work each second or more often: another process leads them soon after the last one has ended.
OFTEN = {name for name, every in leader.INTERVALS.items() if every <= 1}
QUEUE = {"Site": site.PLAIN, "GridCE": "ce", "Queue": "q", "CPUTime": 100_000}
JOB = {"jobs": [{"Executable": "/bin/true"}]}


@dataclass
class Requests:
    """Requests that clients send one after the other, and what became of them."""

    url: str
    answered: int = 0
    failed: list[str] = field(default_factory=list)  #: without an answer, or with an error of the service
    _stop: threading.Event = field(default_factory=threading.Event)

    def send(self, method: str, path: str, token: str, body: object, *, keeps: bool) -> None:
        """Send one after the other, in a connection that is kept, or each in a new one.

        A pod closes a connection that was idle for five seconds; this client does long before, so that it
        sends nothing into one that is closing, however late its thread is.
        """
        with httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {token}", "Request-Timeout": "60"},
            verify=NO_AUTHORITIES,
            trust_env=False,
            timeout=600,
            limits=httpx.Limits(max_keepalive_connections=int(keeps), keepalive_expiry=1),
        ) as client:
            while not self._stop.wait(0.02):
                try:
                    answer = client.request(method, path, json=body)
                except httpx.TransportError as error:
                    self.failed.append(f"{method} {path}: {error!r}")
                else:
                    self.answered += 1
                    if answer.is_server_error:
                        self.failed.append(f"{method} {path}: {answer.status_code} {answer.text}")

    def wait_for_more(self) -> None:
        """Wait for so many answers that each pod gave some."""
        enough = self.answered + 40
        wait_until(lambda: self.answered > enough)

    def stop(self) -> None:
        self._stop.set()


@dataclass
class Cluster:
    """The pods of the Deployments, and the Service."""

    installation: Installation
    engine: Engine
    service: Endpoints
    pods: dict[str, list[Pod]] = field(default_factory=lambda: {name: [] for name in NAMES})
    started: list[Pod] = field(default_factory=list)
    ending: list[Pod] = field(default_factory=list)

    def start_pod(self, name: str) -> None:
        """As the Deployment does for one replica more: the Service leads to it once it is ready."""
        log = self.installation.home / f"{name}-{len(self.started)}.log"
        pod = Pod(DEPLOYMENTS[name]["template"]["spec"], self.installation.environment, log)
        pod.start()
        self.started.append(pod)
        pod.wait_until_ready()
        self.pods[name].append(pod)
        if name == SERVE:
            self.service.add(pod)

    def begin_to_end(self, name: str, pod: Pod, requests: Requests) -> None:
        """As the kubelet does, without the wait; the Service leads to the pod until its probe fails."""
        self.pods[name].remove(pod)
        self.ending.append(pod)
        requests.wait_for_more()
        pod.terminate()
        if name == SERVE:
            assert pod.wait_until_not_ready(), "it ended before the Service could notice"
            requests.wait_for_more()
            self.service.remove(pod)

    def restart(self, name: str, requests: Requests) -> None:
        """As `kubectl rollout restart`, one pod more at a time and none less."""
        for former in list(self.pods[name]):
            self.start_pod(name)
            self.begin_to_end(name, former, requests)

    def read_statuses(self) -> set[str]:
        """Those that jobs are in."""
        return set(databases.scalars(self.engine, select(jobs.c.status).distinct()))

    def are_agents_led(self) -> bool:
        """Whether pods that run lead all agents that work often."""
        with database.reading(self.engine) as conn:
            holders = agent_leases.list_holders(conn)
        running = {str(pod.pid) for pod in self.pods["pilotage-agent"]}
        return all(holders.get(name, "::").split(":")[1] in running for name in OFTEN)


@pytest.fixture
def cluster(
    tmp_path: Path, postgres_url: str, postgresql: Engine, redis_server: RedisServer
) -> Iterator[Cluster]:
    resources = tmp_path / "resources.yaml"
    resources.write_text(site.LASTING)
    settings = kubernetes.find(BASE, "ConfigMap", "pilotage")["data"]
    here = {
        "HOME": tmp_path,
        "KEY": tmp_path / "key.pem",
        "BLOBS": tmp_path / "blobs",
        "RESOURCES": resources,
        "DATABASE_URL": postgres_url,
        "REDIS_URL": redis_server.url,
    }
    env = {**settings, **{f"PILOTAGE_{name}": str(value) for name, value in here.items()}}
    # Longer than shipped: the machine may stand still while a pod ends.
    env |= {"PILOTAGE_SHUTDOWN_DELAY": "120", "PILOTAGE_SHUTDOWN_GRACE": "720"}
    with ExitStack() as stack:
        installation = Installation(tmp_path, env, stack)
        installation.run(*UPGRADE["args"])
        cluster = Cluster(installation, postgresql, stack.enter_context(Endpoints().serving()))
        stack.callback(lambda: [pod.kill() for pod in cluster.started])
        for name, replicas in REPLICAS.items():
            for _ in range(replicas):
                cluster.start_pod(name)
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
    with ThreadPoolExecutor(2 * len(kinds)) as threads:
        running = [
            threads.submit(requests.send, *kind, keeps=keeps) for kind in kinds for keeps in (True, False)
        ]
        try:
            yield requests
        finally:
            requests.stop()
        for each in running:
            each.result()


def test_a_rolling_restart_a_pod_more_and_one_less_leave_no_request_without_an_answer(
    cluster: Cluster,
) -> None:
    assert DEPLOYMENTS[SERVE]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    with sending(cluster) as requests:
        for name in NAMES:
            cluster.restart(name, requests)
        cluster.start_pod(SERVE)
        requests.wait_for_more()
        cluster.begin_to_end(SERVE, cluster.pods[SERVE][-1], requests)
        assert [pod.wait() for pod in cluster.ending] == [0] * len(cluster.ending)
        requests.wait_for_more()
    assert {name: len(pods) for name, pods in cluster.pods.items()} == REPLICAS
    assert requests.failed == []
    # Workers have prepared all jobs, and agents go on in one of the new pods.
    wait_until(lambda: {"Matched"} <= cluster.read_statuses() <= {"Matched", "Waiting"})
    wait_until(cluster.are_agents_led)
