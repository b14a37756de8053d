"""`pilotage director` as a process of its own on a real Slurm, killed again and again."""

import json
import platform
import random
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.servers.slurm import Slurm
from taskqueue import database
from tests.acceptance.processes import PILOTAGE, Supervised
from tests.running_service import Service, running

pytestmark = pytest.mark.debian("slurm")

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      CPUTime: 3600
      MaxRAM: 300
      CEs:
        slurm:
          Queues:
            short: {MaxTotalJobs: 30, MaxWaitingJobs: 30}
            long:
              MaxTotalJobs: 30
              MaxWaitingJobs: 30
              NodeAttributes: {Architecture: [HERE, other]}
              Forwarding:
                Vocabulary: Slurm
                Attributes: {Architecture: {features: {HERE: avx512, other: intel}}}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms}
    dune_user: {VO: dune}
"""
HERE = platform.machine()  # pilots measure it
VOS = ("cms", "dune")


class Field:
    """A service, a Slurm, and the file of a director between them."""

    def __init__(self, service: Service, slurm: Slurm, directory: Path) -> None:
        self.service = service
        self.slurm = slurm
        self.directory = directory
        self.name = f"test-{secrets.token_hex(4)}"  # the Slurm remembers the jobs of other tests
        self.file = directory / "director.yaml"
        self.file.write_text(yaml.safe_dump(self._told()))

    def _told(self) -> dict[str, Any]:
        for vo in VOS:
            token = self.service.token("director", vo=vo, user="dora")
            (self.directory / f"{vo}.token").write_text(token)
        return {
            "url": self.service.url,
            "name": self.name,
            "every": 0.3,
            "pause": 1,
            "longest_pause": 2,
            "gone": {"listings": 2, "seconds": 2},
            "vos": {vo: {"token_file": str(self.directory / f"{vo}.token")} for vo in VOS},
            "systems": {
                "farm": {
                    "kind": "slurm",
                    "directory": str(self.directory / "jobs"),
                    "environment": dict(self.slurm.environment),
                }
            },
            "queues": [
                {"queue": f"LCG.A.org/slurm/{name}", "system": "farm", "wall_time": 600, "memory": 300}
                for name in ("short", "long")
            ],
            "pilot": ["--max-empty=1"],
        }

    def submit(self, vo: str, number: int, **more: object) -> list[int]:
        job = {"Executable": "/bin/true", "CPUTime": 100, **more}
        answer = self.service.user(vo=vo).post("/api/v1/jobs", json={"jobs": [job] * number})
        assert answer.status_code == 201, answer.text
        ids: list[int] = answer.json()["job_ids"]
        return ids

    def open_jobs(self) -> Counter[str]:
        rows = self.service.operator().get("/api/v1/jobs/summary", params={"by": "status"}).json()["summary"]
        return Counter({row["status"]: row["count"] for row in rows if row["status"] != "Done"})

    def pilots(self) -> list[dict[str, Any]]:
        answer = self.service.operator().get("/api/v1/pilots", params={"limit": 1000}).json()
        found: list[dict[str, Any]] = answer["pilots"]
        return found

    def batch_jobs(self) -> list[tuple[str, str, str]]:
        """Number, stamp and partition of all jobs of ours that Slurm remembers, ended ones too."""
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def wait_until_done(self, director: Supervised) -> None:
        deadline = time.monotonic() + 60
        while jobs := self.open_jobs():
            assert time.monotonic() < deadline, (jobs, director.log.read_text()[-3000:])
            director.keep_alive()
            time.sleep(0.3)


@pytest.fixture
def field(sqlite_url: str, slurm: Slurm, tmp_path: Path) -> Iterator[Field]:
    engine = database.connect(sqlite_url)
    with running(engine, tmp_path, CONFIG.replace("HERE", HERE)) as service:
        yield Field(service, slurm, tmp_path)
        slurm.ask("scancel", "--me")
    engine.dispose()


@pytest.mark.timeout(180)
def test_jobs_of_two_vos_are_done_once_by_pilots_of_a_director_that_is_killed_again_and_again(
    field: Field,
) -> None:
    chance = random.Random(7)
    for vo in VOS:
        field.submit(vo, 10)
        field.submit(vo, 2, Requirements={"Architecture": HERE})
    director = field.director()
    try:
        for _ in range(5):
            director.start()
            time.sleep(chance.uniform(1.0, 2.2))
            director.kill()
        director.start()
        field.wait_until_done(director)
    finally:
        director.stop()

    batch_jobs, pilots = field.batch_jobs(), {pilot["stamp"]: pilot for pilot in field.pilots()}
    names = Counter(stamp for _, stamp, _ in batch_jobs)
    assert names
    assert max(names.values()) == 1, "no stamp twice"
    assert names.keys() <= pilots.keys(), "no batch job without its intent"
    known = {stamp: pilot["reference"] for stamp, pilot in pilots.items() if pilot["reference"]}
    assert all(known.get(stamp, number) == number for number, stamp, _ in batch_jobs)
    assert known.keys() <= names.keys()
    assert {pilot["vo"] for pilot in pilots.values() if pilot["jobs"]} == set(VOS)
    assert {partition for _, stamp, partition in batch_jobs if ".any." not in stamp} == {"long"}


@pytest.mark.timeout(120)
def test_one_cycle_tells_what_it_did_and_sends_nothing_for_nothing(field: Field) -> None:
    assert field.once()["submitted"] == 0
    field.submit("cms", 2)

    said = field.once()

    assert (said["jobs"], said["wanted"], said["submitted"]) == (2, 2, 2)
    assert len(field.batch_jobs()) == 2
