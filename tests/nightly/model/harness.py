"""Servers for the model: `up` on SQLite, or two `serve` with agents on PostgreSQL, and HTTP to them.

Nothing here knows a rule. Sites are named anew for each run of commands: `@` in a name becomes `@` and a
number on its way to the service, so that one installation serves many runs, and a run can be repeated.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples.servers.postgres import Postgres
from tests.support.installation import Installation

#: `hasty` has short leases: its pilots are the ones that get lost.
VOS = ("alpha", "beta", "hasty")
OPERATIONS = {
    "Defaults": {
        "JobScheduling": {"RescheduleDelays": [0], "JobPriorities": ["{MC: 2, Test: 1}", "User"]},
        "Limits": {"RequestsPerSecond": 100000},
        "Leases": {"Time": 7200},  # longer than a run on a busy machine
    },
    "hasty": {"Leases": {"Time": 3, "StalledTime": 2, "StalledGrace": 1, "RunOnTime": 3}},
}
REGISTRY = {
    "VO": {vo: {} for vo in VOS},
    "Groups": {f"{vo}_{kind}": {"VO": vo} for vo in VOS for kind in ("user", "prod")},
}
#: Seconds until a service must have done what it does in the background, on a machine that is busy with else.
PATIENCE = 300
#: How often a request is sent that changes nothing.
_TRIES = 5
#: `POST` that changes nothing.
_READS = frozenset(
    {
        "/explain",
        "/config/preview",
        "/matcher/getSubmitPoolsForQueue",
        "/matcher/getMatchingTaskQueues",
    }
)


@dataclass
class Answer:
    status: int
    body: Any

    @property
    def ok(self) -> bool:
        return self.status in {200, 201}


@dataclass
class Requests:
    """To services that share a database."""

    clients: list[httpx.Client]  #: one for each of them
    runs: int = 0
    calls: int = 0

    def begin_run(self) -> None:
        """Name the sites anew."""
        self.runs += 1

    def call(
        self, method: str, path: str, body: Any = None, *, service: int = 0, headers: Mapping[str, str] = {}
    ) -> Answer:
        """One request to one of the services; names of sites are translated both ways.

        What changes nothing is repeated where a busy machine was not in time with the answer.
        """
        mark = f"@{self.runs}"
        self.calls += 1
        reads = method == "GET" or path in _READS
        for _ in range(_TRIES if reads else 1):
            answer = self.clients[service % len(self.clients)].request(
                method,
                path.replace("@", mark),
                content=None if body is None else json.dumps(body).replace("@", mark),
                headers={"Content-Type": "application/json", **headers},
            )
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                break
        text = answer.text.replace(mark, "@")
        try:
            return Answer(answer.status_code, json.loads(text) if text else None)
        except ValueError:
            return Answer(answer.status_code, text)


@contextmanager
def services(directory: Path, postgres: Postgres | None) -> Iterator[Requests]:
    """Start them in a directory; without PostgreSQL it is the one embedded process on SQLite."""
    resources = directory / "resources.yaml"
    resources.write_text(yaml.safe_dump({"Registry": REGISTRY, "Operations": OPERATIONS}))
    environment = {"PILOTAGE_HOME": str(directory), "PILOTAGE_KEY": str(directory / "key.pem")}
    with ExitStack() as stack:
        if postgres is not None:
            environment |= {"PILOTAGE_DATABASE_URL": stack.enter_context(postgres.fresh())}
            environment |= {"PILOTAGE_BLOBS": str(directory / "blobs")}
        installed = Installation(directory, environment, stack)
        names = ["up"] if postgres is None else ["serve0", "serve1"]
        urls = [
            installed.serve(name, "--resources", str(resources), command=name.rstrip("01")) for name in names
        ]
        if postgres is not None:
            installed.start("agent", "agent", "all")
        token = installed.token("operator")
        yield Requests([installed.client(url, token) for url in urls])
