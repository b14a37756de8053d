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
import time
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

#: Seconds for what a pod has to come to, and until one that does not end is killed. Both are the machine's
#: business: by the files' own numbers a pod that stands still would be killed.
_PATIENCE, _KILL = 300.0, 900.0
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
        here = {
            "0.0.0.0": "127.0.0.1",  # noqa: S104
            "/etc/pilotage/resources/resources.yaml": self.env["PILOTAGE_RESOURCES"],
        }
        here |= {str(each["containerPort"]): str(self.port) for each in self.container.get("ports", ())}
        arguments = [here.get(each, each) for each in self.container["args"]]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PILOTAGE), *arguments], stdout=log, stderr=log, env={**os.environ, **self.env}
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

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
        """Wait for its probes, and until it handles SIGTERM: before, the signal would kill it."""
        for probe in ("startupProbe", "readinessProbe"):
            if probe in self.container:
                self._probe_until(probe, passes=True)
        wait_until(self._handles_sigterm, _PATIENCE)

    def _handles_sigterm(self) -> bool:
        assert self.is_running, self.log.read_text()
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [caught] = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def wait_until_not_ready(self) -> bool:
        """Wait for as many failed probes in a row as its probe wants; whether it still answered then."""
        self._probe_until("readinessProbe", passes=False)
        return self.is_running and self._lives()

    def _probe_until(self, probe: str, *, passes: bool) -> None:
        """Probe each `periodSeconds`, until it has passed or failed as often in a row as the probe wants."""
        declared = self.container[probe]
        wanted = declared.get("successThreshold", 1) if passes else declared.get("failureThreshold", 3)
        end, in_a_row = time.monotonic() + _PATIENCE, 0
        while True:
            in_a_row = in_a_row + 1 if self.passes(probe) is passes else 0
            if in_a_row == wanted:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"{probe} of {self.log.stem}: {self.log.read_text()}")
            time.sleep(declared.get("periodSeconds", 10))

    def _lives(self) -> bool:
        """Whether one of as many probes succeeds as may fail in a row."""
        declared = self.container["livenessProbe"]
        for _ in range(declared.get("failureThreshold", 3)):
            if self.passes("livenessProbe"):
                return True
            time.sleep(declared.get("periodSeconds", 10))
        return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Wait as its `preStop` does, and send SIGTERM."""
        assert self._process is not None
        if hooks := self.container.get("lifecycle"):
            time.sleep(hooks["preStop"]["sleep"]["seconds"])
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end, and return its status: -9 if it was killed, since it did not end."""
        assert self._process is not None
        try:
            return self._process.wait(_KILL)
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
                client.settimeout(None)
                try:
                    pod = self._connect()
                except OSError:
                    client.close()
                else:
                    threading.Thread(target=self._forward, args=(client, pod), daemon=True).start()

    def _connect(self) -> socket.socket:
        """Connect to the next pod; none is removed meanwhile."""
        with self._lock:
            self._next += 1
            return socket.create_connection(("127.0.0.1", self._ports[self._next % len(self._ports)]))

    @staticmethod
    def _forward(client: socket.socket, pod: socket.socket) -> None:
        with client, pod, suppress(OSError):
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
