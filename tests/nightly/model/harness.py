"""Servers for the model: `up` on SQLite, or two `serve` with agents on PostgreSQL, and HTTP to them.

Nothing here knows a rule. Sites are named anew for each run of commands: `@` in a name becomes `@` and a
number on its way to the service, so that one installation serves many runs, and a run can be repeated.
"""

import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples.servers.postgres import Postgres
from examples.servers.starting import free_port
from tests.support.processes import PILOTAGE, Supervised

#: `hasty` has short leases: its pilots are the ones that get lost.
VOS = ("alpha", "beta", "hasty")
OPERATIONS = {
    "Defaults": {"JobScheduling": {"RescheduleDelays": [0]}, "Limits": {"RequestsPerSecond": 100000}},
    "hasty": {"Leases": {"Time": 3, "StalledTime": 2, "StalledGrace": 1, "RunOnTime": 3}},
}
REGISTRY = {
    "VO": {vo: {} for vo in VOS},
    "Groups": {f"{vo}_{kind}": {"VO": vo} for vo in VOS for kind in ("user", "prod")},
}
#: The services are reached without TLS: loading the certificates of all authorities takes long.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
#: Seconds until a service must have done what it does in the background, on a machine that is busy with else.
PATIENCE = 120


@dataclass
class Answer:
    status: int
    body: Any

    @property
    def ok(self) -> bool:
        return self.status in {200, 201}


@dataclass
class Installation:
    """Services that share a database."""

    urls: list[str]
    token: str
    runs: int = 0
    calls: int = 0
    clients: list[httpx.Client] = field(default_factory=list)

    def begin_run(self) -> None:
        """Name the sites anew."""
        self.runs += 1

    def call(
        self, method: str, path: str, body: Any = None, *, service: int = 0, headers: Mapping[str, str] = {}
    ) -> Answer:
        """One request to one of the services; names of sites are translated both ways."""
        mark = f"@{self.runs}"
        self.calls += 1
        answer = self.clients[service % len(self.clients)].request(
            method,
            "/api/v1" + path.replace("@", mark),
            content=None if body is None else json.dumps(body).replace("@", mark),
            headers={"Content-Type": "application/json", **headers},
        )
        text = answer.text.replace(mark, "@")
        try:
            return Answer(answer.status_code, json.loads(text) if text else None)
        except ValueError:
            return Answer(answer.status_code, text)


@contextmanager
def installation(directory: Path, postgres: Postgres | None) -> Iterator[Installation]:
    """Start the services in a directory; without PostgreSQL the one embedded process on SQLite."""
    resources = directory / "resources.yaml"
    resources.write_text(yaml.safe_dump({"Registry": REGISTRY, "Operations": OPERATIONS}))
    environment = {"PILOTAGE_HOME": str(directory), "PILOTAGE_KEY": str(directory / "key.pem")}
    ports = [free_port() for _ in range(1 if postgres is None else 2)]
    commands = [("serve", "--port", str(port), "--resources", str(resources)) for port in ports]
    with ExitStack() as stack:
        if postgres is None:
            commands = [("up", *commands[0][1:])]
        else:
            environment |= {"PILOTAGE_DATABASE_URL": stack.enter_context(postgres.fresh())}
            environment |= {"PILOTAGE_BLOBS": str(directory / "blobs")}
            commands += [("agent", "all")]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for number, command in enumerate(commands):
            process = Supervised(
                command[0], command, env=environment, log=directory / f"{command[0]}{number}.log"
            )
            process.start()
            stack.callback(process.stop)
            if command[0] != "agent":
                _wait_until_ready(urls[number], process)
        token = _token(environment)
        clients = [
            stack.enter_context(
                httpx.Client(
                    base_url=url,
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=PATIENCE,
                    trust_env=False,
                    verify=NO_AUTHORITIES,
                )
            )
            for url in urls
        ]
        yield Installation(urls=urls, token=token, clients=clients)


def _wait_until_ready(url: str, process: Supervised) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.is_running, process.log.read_text()
        try:
            if (
                httpx.get(
                    f"{url}/readyz", trust_env=False, verify=NO_AUTHORITIES, timeout=PATIENCE
                ).status_code
                == 200
            ):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(process.log.read_text())


def _token(environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [str(PILOTAGE), "token", "--role", "operator", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    token: str = json.loads(done.stdout)["token"]
    return token
