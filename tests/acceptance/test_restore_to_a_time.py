"""A database is restored to a moment by pgBackRest, as docs/operator/backups.md says, also under Patroni."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from examples.servers.cluster import MASTER, PASSWORD, Addresses, Node, PatroniCluster, postgresql_programs
from examples.servers.postgres import Postgres
from examples.servers.starting import wait_until
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
_PASSWORD = "of-the-tests"
#: How pgBackRest wants a moment.
_FORMAT = "YYYY-MM-DD HH24:MI:SS.US+00"


class _OneServer:
    """A PostgreSQL of Debian with an archive."""

    def __init__(self, directory: Path, archive: PgBackRest) -> None:
        self._archive = archive
        self._server = Postgres(directory, archive.settings, programs=debian.find_postgresql())
        self._server.start()
        self._server.execute("CREATE DATABASE pilotage")
        archive.set_up(self._server)
        archive.run(self._server, "stanza-create")

    @property
    def url(self) -> str:
        return self._server.url("pilotage")

    def back_up(self, *words: str) -> None:
        self._archive.run(self._server, *words)

    def ask(self, question: str) -> object:
        return self._server.ask(question)

    def restore(self, *words: str) -> None:
        """Its disk is lost."""
        self._server.kill()
        for each in (self._server.directory / "data").iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        self._archive.run(self._server, *words, "restore")
        self._server.start()
        self._server.wait_until("SELECT NOT pg_is_in_recovery()")

    def stop(self) -> None:
        self._server.stop()


class _PatroniNodes:
    """Three nodes under Patroni with a common archive."""

    def __init__(self, directory: Path, archive: PgBackRest) -> None:
        self._archive = archive
        self._cluster = PatroniCluster(directory, Addresses())
        self._cluster.start()
        self._cluster.create_database("pilotage", _PASSWORD)
        # `wal_level` is Patroni's own.
        settings = {name: value for name, value in archive.settings.items() if name != "wal_level"}
        words = [word for name, value in settings.items() for word in ("-p", f"{name}={value}")]
        self._cluster.control("edit-config", "--force", *words)
        # Each node finds by itself that a restart is pending; those that have not yet are not restarted.
        wait_until(lambda: self._cluster.control("list").count("*") == len(self._cluster.nodes))
        self._cluster.control("restart", "--force", "--pending", MASTER)
        wait_until(lambda: self.ask("SHOW archive_mode") == "on")
        for node in self._cluster.nodes.values():
            archive.set_up(node)
        self.back_up("stanza-create")

    @property
    def url(self) -> str:
        hosts = ",".join(f"{node.address}:5432" for node in self._cluster.nodes.values())
        return f"postgresql://pilotage:{_PASSWORD}@{hosts}/pilotage?target_session_attrs=read-write"

    def back_up(self, *words: str) -> None:
        self._archive.run(self._cluster.wait_for_primary(), *words)

    def ask(self, question: str) -> object:
        [[value]] = self._cluster.ask(question)
        return value

    def restore(self, *words: str) -> None:
        """Another node than that of the backup is the primary, and is restored."""
        backed_up = self._cluster.wait_for_primary()
        wait_until(lambda: self._has_switched(backed_up))
        first = self._cluster.wait_for_primary()
        others = [node for node in self._cluster.nodes.values() if node is not first]
        for node in (*others, first):
            node.patroni.stop()
        self._cluster.control("remove", MASTER, typed=(MASTER, "Yes I am aware"))
        self._archive.run(first, "--delta", *words, "restore")
        log = first.directory / "restore.log"
        options = f"-c listen_addresses='' -c unix_socket_directories={first.directory}"
        self._run(first, "--wait", f"--log={log}", f"--options={options}", "start")
        local = f"host={first.directory} user=postgres password={PASSWORD} dbname=postgres"
        wait_until(lambda: not _ask(local, "SELECT pg_is_in_recovery()"))
        self._run(first, "--wait", "stop")
        first.patroni.start()
        wait_until(lambda: self._cluster.find_primary() is first)
        for node in others:
            shutil.rmtree(node.directory / "data")
            node.patroni.start()
        wait_until(self._cluster.is_whole)
        assert self.ask("SHOW archive_mode") == "on", "settings of the cluster come back from its directory"

    def stop(self) -> None:
        self._cluster.stop()

    def _has_switched(self, before: Node) -> bool:
        """Whether another node is the primary and all follow it; a refused switchover is repeated."""
        if not self._cluster.is_whole() or (primary := self._cluster.find_primary()) is None:
            return False
        if primary is before:
            self._cluster.switch_over()
        return primary is not before

    def _run(self, node: Node, *words: str) -> None:
        command = [postgresql_programs() / "pg_ctl", "-D", node.directory / "data", "--timeout=300", *words]
        subprocess.run(command, check=True, cwd=node.directory, user=node.user, group=node.user)


def _ask(database: str, question: str) -> object:
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute(question).fetchone()
        return row and row[0]


@pytest.fixture(params=[_OneServer, pytest.param(_PatroniNodes, marks=pytest.mark.debian("patroni"))])
def database(short_directory: Path, request: pytest.FixtureRequest) -> Iterator[_OneServer | _PatroniNodes]:
    directory = short_directory / request.param.__name__
    repository = short_directory / f"repository{request.param.__name__}"
    for each in (directory, repository):
        each.mkdir()
        each.chmod(0o755)
    database = request.param(directory, PgBackRest(repository))
    yield database
    database.stop()
    shutil.rmtree(repository)


@pytest.fixture
def installation(tmp_path: Path, database: _OneServer | _PatroniNodes) -> Iterator[Installation]:
    (tmp_path / "resources.yaml").write_text(TREE)
    environment = {"PILOTAGE_HOME": str(tmp_path), "PILOTAGE_DATABASE_URL": database.url}
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
    installation: Installation, database: _OneServer | _PatroniNodes
) -> None:
    installation.run("db", "upgrade")
    database.back_up("--type=full", "backup")
    sandboxes = [os.urandom(300_000) for _ in range(3)]
    outputs = [os.urandom(2_000_000) for _ in range(3)]
    before = _Life(installation, "before")
    with before.stack:
        # Ended, held by a pilot, and waiting, when the moment comes.
        ended, held, waiting = (before.submit(sandbox) for sandbox in sandboxes)
        first, second = _Run.begin(before), _Run.begin(before)
        assert (first.job_id, second.job_id) == (ended, held)
        assert first.end(before, outputs[0]) == 200
        moment = str(database.ask(f"SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', '{_FORMAT}')"))
        # All this will not have happened.
        lost_run = _Run.begin(before)
        assert lost_run.job_id == waiting
        lost = [before.submit(os.urandom(1000)) for _ in range(3)]
        assert second.end(before, outputs[1]) == 200
    # Archives are copied after the database; then both are lost.
    database.back_up("check")  # after the next file of the log
    blobs, copy = installation.home / "blobs", installation.home / "copy-of-blobs"
    shutil.copytree(blobs, copy)
    shutil.rmtree(blobs)
    database.restore("--type=time", f"--target={moment}", "--target-action=promote")
    shutil.copytree(copy, blobs)
    installation.run("db", "recover")
    database.back_up("--type=full", "backup")

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
