"""A gateway in the test's own process, before a real service; its line to that may break."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from pilotage.cli.processes import gateway as processes_gateway
from pilotage.fabric.gateway import configuration
from pilotage.fabric.gateway.configuration import GatewayFile
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.manager.grid_job import AttemptKey, GridJob, ManagerPhase
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.transport import Answer, Away, TokenSource, Transport
from tests.support.service import Service

SITE = "LCG.A.org"
QUEUE = "LCG.A.org/ce1/long"


class Line(Transport):
    """The way to the service: cut off, or losing answers to paths with an ending."""

    cut = False
    loses: str | None = None
    refuses: tuple[str, Exception] | None = None  #: an ending of paths, and what requests to them meet
    calls: list[str]

    def call(self, method: str, path: str, *rest: Any, **more: Any) -> Answer:
        self._go(path)
        answer = super().call(method, path, *rest, **more)
        self._come(path)
        return answer

    def upload(self, path: str, archive: BinaryIO, *, size: int) -> Answer:
        self._go(path)
        answer = super().upload(path, archive, size=size)
        self._come(path)
        return answer

    def _go(self, path: str) -> None:
        self.calls.append(path)
        if self.cut:
            raise Away("cut off, on purpose")
        if self.refuses is not None and path.endswith(self.refuses[0]):
            raise self.refuses[1]

    def _come(self, path: str) -> None:
        if self.loses is not None and path.endswith(self.loses):
            raise Away("the answer was lost, on purpose")


class Ground:
    """A service with gateways that come and go; one at a time."""

    def __init__(self, service: Service, directory: Path, monkeypatch: Any) -> None:
        self.service = service
        self.directory = directory
        self.line: Line | None = None
        self.log: list[str] = []
        self.operator = service.operator()
        directory.mkdir(exist_ok=True)
        (directory / "given").write_text(service.token("gateway", vo="cms", site=SITE))
        monkeypatch.setattr(processes_gateway, "Transport", self._transport)

    def _transport(self, url: str, tokens: TokenSource, **more: Any) -> Line:
        self.line = Line(url, tokens, **more)
        self.line.calls = self.log
        return self.line

    def told(self, **more: Any) -> GatewayFile:
        return configuration.read_file({**self._said(), **more}, "g.yaml")

    def file(self) -> Path:
        path = self.directory / "g.yaml"
        path.write_text(json.dumps(self._said()))
        return path

    def _said(self) -> dict[str, Any]:
        return {
            "url": self.service.url,
            "name": "gate",
            "token_file": str(self.directory / "given"),
            "vos": ["cms"],
            "directory": str(self.directory / "state"),
            "systems": {
                "host": {
                    "kind": "local",
                    "directory": str(self.directory / "farm"),
                    "cores": 4,
                    "memory": 8000,
                }
            },
            "queues": [
                {"queue": QUEUE, "system": "host", "batch_queue": "local", "max_grid_jobs": 3, "memory": 100}
            ],
            "beat": 1,
            "settle": 0,
        }

    @contextlib.contextmanager
    def gateway(self, **more: Any) -> Iterator[Gateway]:
        with processes_gateway.open_gateway(self.told(**more), Path("g.yaml")) as gateway:
            gateway.manager._clock = lambda: 0.0  # however slow the machine is, a round has time for all
            yield gateway

    def submit(self, number: int = 1, **more: object) -> list[int]:
        stated = {"Executable": "/bin/true", "JobType": "generic", **more}
        job = {name: value for name, value in stated.items() if value is not None}
        answer = self.service.user().post("/api/v1/jobs", json={"jobs": [job] * number})
        assert answer.status_code == 201, answer.text
        ids: list[int] = answer.json()["job_ids"]
        return ids

    def job(self, job_id: int) -> dict[str, Any]:
        found: dict[str, Any] = self.operator.get(f"/api/v1/jobs/{job_id}").json()
        return found

    def statuses(self) -> dict[str, int]:
        answer = self.operator.get("/api/v1/jobs/summary", params={"by": "status"}).json()
        return {row["status"]: row["count"] for row in answer["summary"]}

    def throttle(self, scope: str = SITE) -> Mapping[str, Any]:
        answer = self.operator.get(f"/api/v1/sites/{SITE}").json()
        [found] = [each for each in answer["throttles"] if each["scope"] == scope]
        return dict(found)


def phases(gateway: Gateway) -> dict[int, ManagerPhase]:
    return {each.taken.job_id: each.phase for each in gateway.manager.grid_jobs()}


def end(gateway: Gateway, job_id: int, report: Report, output: Path | None = None) -> GridJob:
    """Write into the book that a grid job has ended; its local jobs are as if they had never been."""
    [entry] = [each for each in gateway.manager.journal.entries() if each.taken.job_id == job_id]
    ended = replace(entry, number=0, outcome=report, output=None if output is None else str(output))
    gateway.manager.journal.write(AttemptKey(job_id, entry.taken.epoch), entry=ended)
    return next(each for each in gateway.manager.grid_jobs() if each.taken.job_id == job_id)
