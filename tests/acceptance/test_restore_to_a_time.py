"""A database that is lost is restored to a moment by pgBackRest, as docs/operator/backups.md says."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.servers.postgres import Postgres
from tests import debian
from tests.support.installation import Installation
from tests.support.servers.pgbackrest import PgBackRest

pytestmark = pytest.mark.debian("pgbackrest")

TREE = """
Resources: {Sites: {A.B.ch: {CEs: {ce: {Queues: {long: {}}}}}}}
Registry: {VO: {cms: {}}}
"""
ASKING = {"Site": "A.B.ch", "GridCE": "ce", "Queue": "long", "CPUTime": 10**6}
DONE = {"status": "Done", "exit_code": 0}
#: How pgBackRest wants a moment.
_FORMAT = "YYYY-MM-DD HH24:MI:SS.US+00"


@pytest.fixture
def archive(short_directory: Path) -> Iterator[PgBackRest]:
    directory = short_directory / "pgbackrest"
    directory.mkdir()
    directory.chmod(0o755)
    yield PgBackRest(directory)
    shutil.rmtree(directory)


@pytest.fixture
def server(short_directory: Path, archive: PgBackRest) -> Iterator[Postgres]:
    directory = short_directory / "archived_pg"
    directory.mkdir()
    server = Postgres(directory, archive.settings, programs=debian.find_postgresql())
    server.start()
    server.execute("CREATE DATABASE pilotage")
    archive.prepare(server)
    yield server
    server.stop()


@pytest.fixture
def installation(tmp_path: Path, server: Postgres) -> Iterator[Installation]:
    (tmp_path / "resources.yaml").write_text(TREE)
    environment = {"PILOTAGE_HOME": str(tmp_path), "PILOTAGE_DATABASE_URL": server.url("pilotage")}
    with ExitStack() as stack:
        yield Installation(tmp_path, environment, stack)


class _Life:
    """Clients of an installation from one start of its service to the next."""

    def __init__(self, installation: Installation, name: str) -> None:
        self.stack = ExitStack()
        self.installation = Installation(installation.home, installation.environment, self.stack)
        self.url = self.installation.serve(name, "--resources", str(installation.home / "resources.yaml"))
        self.user = self.client("user", "--user", "ada", "--vo", "cms")

    def client(self, role: str, *options: str) -> httpx.Client:
        return self.as_token(self.installation.token(role, *options))

    def as_token(self, token: str) -> httpx.Client:
        return self.installation.client(self.url, token)

    def submit(self, sandbox: bytes) -> int:
        """The id of a job with a sandbox of its own."""
        stored = self.user.post("/sandboxes", content=sandbox).json()["sandbox"]
        job = {"Executable": "run.sh", "InputSandbox": ["run.sh"]}
        answer = self.user.post("/jobs", json={"jobs": [job], "sandbox": stored})
        assert answer.status_code == 201, answer.text
        return int(answer.json()["job_ids"][0])

    def status(self, job_id: int) -> str:
        return str(self.user.get(f"/jobs/{job_id}").json().get("status"))

    def output(self, job_id: int) -> bytes:
        answer = self.user.get(f"/jobs/{job_id}/output")
        assert answer.status_code == 200, answer.text
        return answer.content


@dataclass
class _Run:
    """A job that a pilot has."""

    token: str
    match: dict[str, Any]

    @classmethod
    def begin(cls, life: _Life) -> "_Run":
        token = life.installation.token("pilot", "--vo", "cms", "--queue", "A.B.ch/ce/long")
        [match] = life.as_token(token).post("/matcher/requestJob", json=ASKING).json()["matches"]
        run = cls(token, match)
        assert run.report(life, "start", {}) == 200
        return run

    @property
    def job_id(self) -> int:
        return int(self.match["job_id"])

    def report(self, life: _Life, what: str, body: object) -> int:
        return life.as_token(self.token).post(f"/leases/{self.match['lease']}/{what}", json=body).status_code

    def fetch_sandbox(self, life: _Life) -> bytes:
        answer = life.as_token(self.token).get(f"/leases/{self.match['lease']}/sandbox")
        assert answer.status_code == 200, answer.text
        return answer.content

    def end(self, life: _Life, output: bytes) -> int:
        stored = life.as_token(self.token).put(f"/leases/{self.match['lease']}/output", content=output)
        if stored.status_code != 200:
            return stored.status_code
        return self.report(life, "finish", DONE | {"output": stored.json()["output"]})


def test_jobs_of_before_are_there_with_their_archives_and_nothing_is_doubled(
    installation: Installation, server: Postgres, archive: PgBackRest
) -> None:
    installation.run("db", "upgrade")
    archive.run(server, "--type=full", "backup")
    sandboxes = [os.urandom(300_000) for _ in range(3)]
    outputs = [os.urandom(2_000_000) for _ in range(3)]
    before = _Life(installation, "before")
    with before.stack:
        # Ended, held by a pilot, and waiting, when the moment comes.
        ended, held, waiting = (before.submit(sandbox) for sandbox in sandboxes)
        first, second = _Run.begin(before), _Run.begin(before)
        assert (first.job_id, second.job_id) == (ended, held)
        assert first.end(before, outputs[0]) == 200
        moment = str(server.ask(f"SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', '{_FORMAT}')"))
        # All this will not have happened.
        lost_run = _Run.begin(before)
        assert lost_run.job_id == waiting
        lost = [before.submit(os.urandom(1000)) for _ in range(3)]
        assert second.end(before, outputs[1]) == 200
    # Archives are copied after the database; then both are lost.
    server.execute("SELECT pg_switch_wal()")
    archive.run(server, "check")
    blobs, copy = installation.home / "blobs", installation.home / "copy-of-blobs"
    shutil.copytree(blobs, copy)
    server.kill()
    shutil.rmtree(blobs)
    for each in (server.directory / "data").iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()

    archive.run(server, "--type=time", f"--target={moment}", "--target-action=promote", "restore")
    shutil.copytree(copy, blobs)
    server.start()
    server.wait_until("SELECT NOT pg_is_in_recovery()")
    installation.run("db", "recover")

    after = _Life(installation, "after")
    with after.stack:
        assert [after.status(each) for each in (ended, held, waiting)] == ["Done", "Running", "Waiting"]
        assert after.output(ended) == outputs[0]
        assert [after.user.get(f"/jobs/{each}").status_code for each in lost] == [404] * 3
        # The pilot of the lost match has no lease; the job is given out once more, and once only.
        assert lost_run.report(after, "heartbeat", {}) == 404
        again = _Run.begin(after)
        assert (again.job_id, again.fetch_sandbox(after)) == (waiting, sandboxes[2])
        assert again.match["epoch"] > lost_run.match["epoch"]
        # The end of the held one was lost: its pilot, which would have repeated it, reports it now.
        assert second.fetch_sandbox(after) == sandboxes[1]
        assert second.end(after, outputs[1]) == 200
        assert again.end(after, outputs[2]) == 200
        assert [after.status(each) for each in (ended, held, waiting)] == ["Done"] * 3
        assert (after.output(held), after.output(waiting)) == (outputs[1], outputs[2])
        assert (new := after.submit(sandboxes[0])) > max(lost)
        found = after.user.get("/jobs").json()["jobs"]
        assert sorted(each["job_id"] for each in found) == [ended, held, waiting, new]
