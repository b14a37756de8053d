"""A cluster of Kubernetes with the files in `deploy/kustomize`, played with processes of this host.

Pods are processes that are started, probed and ended as their containers say; a Service leads connections to
those that are ready. No API server and no nodes: what only those check is not tested here.
"""

import os
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples.servers.starting import free_port, wait_until
from tests.support.processes import PILOTAGE
from tests.support.service import NO_AUTHORITIES

KUSTOMIZE = Path(__file__).parents[3] / "deploy" / "kustomize"
Resource = Mapping[str, Any]


def read_resources(directory: Path) -> Sequence[Resource]:
    """The resources that a kustomization lists, also through others; nothing is transformed."""
    listed = yaml.safe_load((directory / "kustomization.yaml").read_text())
    found: list[Resource] = []
    for name in [*listed.get("resources", ()), *listed.get("components", ())]:
        if (directory / name).is_dir():
            found += read_resources(directory / name)
        else:
            found += yaml.safe_load_all((directory / name).read_text())
    return found


def find(resources: Sequence[Resource], kind: str, name: str) -> Resource:
    """The only resource of this kind and name."""
    [found] = (each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


@dataclass
class Pod:
    """A pod with one container as a process of this host."""

    spec: Mapping[str, Any]
    env: Mapping[str, str]
    log: Path
    port: int = field(default_factory=free_port)
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def container(self) -> Mapping[str, Any]:
        containers: Sequence[Mapping[str, Any]] = self.spec["containers"]
        [container] = containers
        return container

    def start(self) -> None:
        """Start its container, with an address and a file of this host in the place of its own."""
        [declared] = self.container["ports"]
        here = {
            str(declared["containerPort"]): str(self.port),
            "0.0.0.0": "127.0.0.1",  # noqa: S104
            "/etc/pilotage/resources/resources.yaml": self.env["PILOTAGE_RESOURCES"],
        }
        arguments = [here.get(each, each) for each in self.container["args"]]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PILOTAGE), *arguments], stdout=log, stderr=log, env={**os.environ, **self.env}
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def passes(self, probe: str) -> bool:
        """Whether one of its probes succeeds once."""
        request = self.container[probe]["httpGet"]
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{self.port}{request['path']}",
                verify=NO_AUTHORITIES,
                trust_env=False,
                timeout=self.container[probe].get("timeoutSeconds", 1),
            )
        except httpx.TransportError:
            return False
        return answer.status_code < 400

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.passes("startupProbe"))
        wait_until(lambda: self.passes("readinessProbe"))

    def wait_until_not_ready(self) -> bool:
        """Wait for as many failed probes in a row as its probe wants; whether it answered all of them."""
        alive = True
        for _ in range(self.container["readinessProbe"]["failureThreshold"]):
            wait_until(lambda: not self.passes("readinessProbe"))
            alive = alive and self.is_running and self._lives()
        return alive

    def _lives(self) -> bool:
        """Whether one of as many probes succeeds as may fail in a row."""
        return any(
            self.passes("livenessProbe") for _ in range(self.container["livenessProbe"]["failureThreshold"])
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end, and return its status: -9 if it was killed after five minutes."""
        assert self._process is not None
        try:
            return self._process.wait(300)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Endpoints:
    """A Service: each connection goes to the next ready pod, and nothing is tried twice."""

    def __init__(self) -> None:
        self._ports: list[int] = []
        self._lock = threading.Lock()
        self._next = 0
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._listener.settimeout(0.1)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def add(self, pod: Pod) -> None:
        with self._lock:
            self._ports.append(pod.port)

    def remove(self, pod: Pod) -> None:
        with self._lock:
            self._ports.remove(pod.port)

    @contextmanager
    def serving(self) -> Iterator["Endpoints"]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
            self._listener.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client, self._choose()), daemon=True).start()

    def _choose(self) -> int:
        with self._lock:
            self._next += 1
            return self._ports[self._next % len(self._ports)]

    @staticmethod
    def _forward(client: socket.socket, port: int) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as pod:
            client.settimeout(None)
            other = {client: pod, pod: client}
            with selectors.DefaultSelector() as ready:
                for end in other:
                    ready.register(end, selectors.EVENT_READ)
                while True:
                    for key, _ in ready.select():
                        source: Any = key.fileobj
                        if not (data := source.recv(65536)):
                            return
                        other[source].sendall(data)
