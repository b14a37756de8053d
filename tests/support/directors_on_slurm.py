"""A service, a real Slurm, and directors that are processes of their own between them."""

import json
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from examples.servers.slurm import Slurm
from examples.servers.starting import wait_until
from tests.support.processes import PILOTAGE, Supervised
from tests.support.service import Service


class Field:
    """A service, a Slurm, and the file of a director between them."""

    #: Jobs of tests wait for files of this host.
    isolation: Sequence[str] = ("--isolation=none",)

    def __init__(
        self, service: Service, slurm: Slurm, directory: Path, *, vos: Sequence[str] = ("cms",)
    ) -> None:
        self.service = service
        self.slurm = slurm
        self.directory = directory
        self.name = f"test-{secrets.token_hex(4)}"  # the Slurm remembers the jobs of other tests
        self.vos = vos
        self.file = directory / "director.yaml"

    def tell(self, queues: Mapping[str, str], *pilot: str, **resources: int) -> None:
        """Write the director's file.

        Args:
            queues: The partition of each queue of the tree.
            pilot: Arguments of its pilots.
            resources: What is asked of each queue, over one core, 300 MB, 600 s.
        """
        asked = {"system": "farm", "wall_time": 600, "memory": 300, **resources}
        told = self._told([{"queue": name, "batch_queue": each, **asked} for name, each in queues.items()])
        self.file.write_text(yaml.safe_dump({**told, "pilot": ["--max-empty=1", *self.isolation, *pilot]}))

    def tell_broker(self, queues: Mapping[str, str], **more: object) -> None:
        """Write a file in which Slurm picks the partition, of those that belong to queues of the tree."""
        broker = {"system": "farm", "wall_time": 600, "memory": 300, "queues": dict(queues), **more}
        told = {**self._told([]), "brokers": {"wms": broker}, "pilot": ["--max-empty=1"]}
        self.file.write_text(yaml.safe_dump(told))

    def _told(self, queues: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        for vo in self.vos:
            token = self.service.token("director", vo=vo, user="dora")
            (self.directory / f"{vo}.token").write_text(token)
        return {
            "url": self.service.url,
            "name": self.name,
            "polling_time": 0.3,
            "pause": 1,
            "longest_pause": 2,
            "lost_after": {"listings": 2, "seconds": 2},
            "vos": {vo: {"token_file": str(self.directory / f"{vo}.token")} for vo in self.vos},
            "systems": {"farm": self.system()},
            "queues": queues,
        }

    def system(self) -> dict[str, Any]:
        """The batch system, as the director's file has it."""
        return {
            "kind": "slurm",
            "directory": str(self.directory / "jobs"),
            "environment": dict(self.slurm.environment),
        }

    def submit(self, vo: str, number: int, **more: object) -> list[int]:
        job = {"Executable": "/bin/true", "CPUTime": 100, **more}
        answer = self.service.user(vo=vo).post("/api/v1/jobs", json={"jobs": [job] * number})
        assert answer.status_code == 201, answer.text
        ids: list[int] = answer.json()["job_ids"]
        # A director that asks before the optimizers are done finds nothing.
        wait_until(lambda: not {"Received", "Checking"} & self.open_jobs().keys())
        return ids

    def open_jobs(self) -> Counter[str]:
        rows = self.service.operator().get("/api/v1/jobs/summary", params={"by": "status"}).json()["summary"]
        return Counter({row["status"]: row["count"] for row in rows if row["status"] != "Done"})

    def statuses(self, job_id: int) -> list[str]:
        """The statuses that a job has had, in order."""
        rows = self.service.operator().get(f"/api/v1/jobs/{job_id}/log").json()["log"]
        return [row["to"] for row in rows]

    def pilots(self) -> list[dict[str, Any]]:
        answer = self.service.operator().get("/api/v1/pilots", params={"limit": 1000}).json()
        found: list[dict[str, Any]] = answer["pilots"]
        return found

    def batch_jobs(self) -> list[tuple[str, str, str]]:
        """Number, stamp and partition of all batch jobs of ours that Slurm remembers, ended ones too."""
        listed = self.slurm.ask("squeue", "--noheader", "--me", "--states=all", "--format=%i|%j|%P")
        rows = (line.split("|") for line in listed.splitlines())
        return [
            (number, name, partition) for number, name, partition in rows if name.startswith(f"{self.name}.")
        ]

    def director(self) -> Supervised:
        words = ["director", "--config", str(self.file), "--home", str(self.directory)]
        return Supervised("director", words, env={}, log=self.directory / "director.log")

    def once(self) -> dict[str, Any]:
        command = [str(PILOTAGE), "director", "--once", "--json"]
        command += ["--config", str(self.file), "--home", str(self.directory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def wait_until_done(self, director: Supervised, *, but_waiting: int = 0) -> None:
        """Wait until all jobs are done but so many that go on waiting."""
        deadline = time.monotonic() + 300
        while (jobs := self.open_jobs()) != Counter(Waiting=but_waiting):
            assert time.monotonic() < deadline, (jobs, director.log.read_text()[-3000:])
            director.keep_alive()
            time.sleep(0.3)
