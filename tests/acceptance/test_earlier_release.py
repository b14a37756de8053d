"""An upgrade without a stop: services of the last release and of this one share a database."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from examples.servers.postgres import Postgres
from examples.servers.starting import free_port, wait_until
from taskqueue.db import database
from tests.acceptance.campaign import site
from tests.support import earlier_release, scope_counters
from tests.support.processes import PILOTAGE, Supervised
from tests.support.service import NO_AUTHORITIES

EARLIER, THIS = "earlier", "this"
OFFER = {"GridCE": "ce", "Queue": "q", "CPUTime": 100_000}


@dataclass
class Installation:
    """A service of each release, on one home directory and one database, whose schema was upgraded."""

    home: Path
    environments: Mapping[str, Mapping[str, str]]  #: of the processes, by release
    clients: dict[str, dict[str, httpx.Client]]  #: by release of the service, and role or site of a gateway

    def run(self, release: str, *arguments: str) -> str:
        """A command of a release."""
        done = subprocess.run(
            [str(PILOTAGE), *arguments],
            env={**os.environ, **self.environments[release]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, release: str, number: int = 1, **description: object) -> list[int]:
        jobs = [{"Executable": "/bin/true", **description}] * number
        answer = self.clients[release]["user"].post("/jobs", json={"jobs": jobs})
        job_ids: list[int] = answer.raise_for_status().json()["job_ids"]
        for job_id in job_ids:
            wait_until(lambda submitted=job_id: self.status(release, submitted) == "Waiting")  # type: ignore[misc]
        return job_ids

    def status(self, release: str, job_id: int) -> str:
        return str(self.clients[release]["user"].get(f"/jobs/{job_id}").raise_for_status().json()["status"])

    def request_job(self, release: str, at: str = site.PLAIN) -> tuple[int, str] | None:
        """A job and its lease."""
        answer = self.clients[release][at].post("/matcher/requestJob", json={"Site": at, **OFFER})
        matches = answer.raise_for_status().json()["matches"]
        return (matches[0]["job_id"], matches[0]["lease"]) if matches else None

    def report(self, release: str, lease: str, call: str, *, at: str = site.PLAIN, **body: object) -> None:
        self.clients[release][at].post(f"/leases/{lease}/{call}", json=body).raise_for_status()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the earlier release."""
    program = earlier_release.unpack(tmp_path_factory.mktemp("program"))
    assert _locate_program({"PYTHONPATH": str(program)}).is_relative_to(program)
    return program


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def installation(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """One for all tests, which leave no job behind."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("installation")
        yield _install(stack, directory, program, postgres if request.param == "postgresql" else None)


def _install(stack: ExitStack, tmp_path: Path, program: Path, postgres: Postgres | None) -> Installation:
    home = tmp_path / "home"
    home.mkdir()
    (home / "resources.yaml").write_text(site.RESOURCES)
    if postgres is None:
        url = f"sqlite:///{home / 'pilotage.db'}"
        earlier_release.restore_sqlite(home / "pilotage.db")
    else:
        url = postgres.url("earlier")
        postgres.execute("CREATE DATABASE earlier")
        stack.callback(postgres.execute, "DROP DATABASE earlier WITH (FORCE)")
        earlier_release.restore_postgresql(postgres, "earlier")
    both = {"PILOTAGE_HOME": str(home), "PILOTAGE_DATABASE_URL": url}
    environments = {THIS: both, EARLIER: {**both, "PYTHONPATH": str(program)}}
    found = Installation(home=home, environments=environments, clients={})
    found.run(THIS, "db", "upgrade")
    # The configuration is stored by the earlier one, as it was there first.
    for release in (EARLIER, THIS):
        address = _start(stack, found, release)
        found.clients[release] = {
            who: stack.enter_context(
                httpx.Client(
                    base_url=f"{address}/api/v1",
                    headers={"Authorization": f"Bearer {_mint(found, release, who)}"},
                    trust_env=False,
                    verify=NO_AUTHORITIES,
                    timeout=300,
                )
            )
            for who in ("user", site.PLAIN, site.LIMITED)
        }
    return found


def _locate_program(environment: Mapping[str, str]) -> Path:
    """The file that the command `pilotage` of a release runs."""
    where = [sys.executable, "-P", "-c", "import pilotage.cli.application as a; print(a.__file__)"]
    return Path(subprocess.check_output(where, env={**os.environ, **environment}, text=True).strip())


def _start(stack: ExitStack, installation: Installation, release: str) -> str:
    port = free_port()
    resources = installation.home / "resources.yaml"
    service = Supervised(
        release,
        ["serve", "--port", str(port), "--resources", str(resources)],
        env=installation.environments[release],
        log=installation.home / f"{release}.log",
    )
    service.start()
    stack.callback(service.stop)
    address = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert service.is_running, service.log.read_text()
        try:
            answer = httpx.get(f"{address}/readyz", trust_env=False, timeout=5, verify=NO_AUTHORITIES)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    wait_until(is_ready)
    return address


def _mint(installation: Installation, release: str, who: str) -> str:
    rights = ["user"] if who == "user" else ["gateway", "--site", who]
    made = installation.run(release, "token", "--vo", site.VO, "--json", "--role", *rights)
    return str(json.loads(made)["token"])


def test_jobs_go_through_services_of_both_releases(installation: Installation) -> None:
    """Each step of a job's life at the other release than the step before it."""
    for first, second in ((EARLIER, THIS), (THIS, EARLIER)):
        [submitted] = installation.submit(first)
        given, lease = _expect(installation.request_job(second))
        assert given == submitted
        installation.report(first, lease, "start")
        installation.report(second, lease, "heartbeat", progress="half")
        installation.run(first, "agent", "all", "--once")
        installation.report(first, lease, "finish", exit_code=0, status="Done", minor_status="")
        installation.run(second, "agent", "all", "--once")
        assert [installation.status(each, submitted) for each in (EARLIER, THIS)] == ["Done", "Done"]


def test_a_job_that_an_earlier_service_handed_out_is_given_back_to_this_one(
    installation: Installation,
) -> None:
    [submitted] = installation.submit(EARLIER)
    _, lease = _expect(installation.request_job(EARLIER))
    installation.report(THIS, lease, "release", reason="the pilot ends")
    assert installation.status(EARLIER, submitted) == "Waiting"
    again, lease = _expect(installation.request_job(THIS))
    assert again == submitted
    installation.report(EARLIER, lease, "start")
    installation.report(EARLIER, lease, "finish", exit_code=3, status="Failed", minor_status="exit 3")
    assert installation.status(THIS, submitted) == "Failed"


def test_services_of_both_releases_hold_one_limit_together(installation: Installation) -> None:
    installation.submit(THIS, site.MOST + 2, JobType=site.KIND, Site=site.LIMITED)
    leases: list[str] = []
    for release in ((EARLIER, THIS) * site.MOST)[: site.MOST]:
        _, lease = wait_until(lambda at=release: installation.request_job(at, site.LIMITED))  # type: ignore[misc]
        leases.append(lease)
    assert [installation.request_job(each, site.LIMITED) for each in (EARLIER, THIS)] == [None, None]
    for first, second in ((EARLIER, THIS), (THIS, EARLIER)):  # what ends at one makes room at the other
        _end(installation, first, leases.pop())
        _, lease = wait_until(lambda at=second: installation.request_job(at, site.LIMITED))  # type: ignore[misc]
        leases.append(lease)
        assert [installation.request_job(each, site.LIMITED) for each in (EARLIER, THIS)] == [None, None]
    engine = database.connect(installation.environments[THIS]["PILOTAGE_DATABASE_URL"])
    assert scope_counters.agree(engine)
    for lease in leases:
        _end(installation, EARLIER, lease)
    assert scope_counters.agree(engine)
    engine.dispose()


def _expect(match: tuple[int, str] | None) -> tuple[int, str]:
    assert match is not None
    return match


def _end(installation: Installation, release: str, lease: str) -> None:
    installation.report(release, lease, "start", at=site.LIMITED)
    installation.report(
        release, lease, "finish", at=site.LIMITED, exit_code=0, status="Done", minor_status=""
    )
