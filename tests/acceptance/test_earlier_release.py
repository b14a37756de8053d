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

from examples.servers.starting import free_port, wait_until
from tests import earlier_release
from tests.acceptance.campaign import site
from tests.acceptance.processes import PILOTAGE, Supervised
from tests.postgres import Postgres
from tests.running_service import NO_AUTHORITIES

EARLIER, THIS = "earlier", "this"
OFFER = {"Site": site.PLAIN, "GridCE": "ce", "Queue": "q", "CPUTime": 100_000}


@dataclass
class Installation:
    """A service of each release, on one home directory and one database, whose schema was upgraded."""

    home: Path
    environments: Mapping[str, Mapping[str, str]]  #: of the processes, by release
    clients: dict[str, dict[str, httpx.Client]]  #: by release of the service, and role

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

    def submit(self, release: str) -> int:
        answer = self.clients[release]["user"].post("/jobs", json={"jobs": [{"Executable": "/bin/true"}]})
        [job_id] = answer.raise_for_status().json()["job_ids"]
        return int(job_id)

    def status(self, release: str, job_id: int) -> str:
        return str(self.clients[release]["user"].get(f"/jobs/{job_id}").raise_for_status().json()["status"])

    def request_job(self, release: str) -> tuple[int, str]:
        """A job and its lease."""
        answer = self.clients[release]["gateway"].post("/matcher/requestJob", json=OFFER)
        [match] = answer.raise_for_status().json()["matches"]
        return match["job_id"], match["lease"]

    def report(self, release: str, lease: str, call: str, **body: object) -> None:
        self.clients[release]["gateway"].post(f"/leases/{lease}/{call}", json=body).raise_for_status()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the earlier release."""
    program = earlier_release.unpack(tmp_path_factory.mktemp("program"))
    assert _locate_program({"PYTHONPATH": str(program)}).is_relative_to(program)
    return program


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(
    request: pytest.FixtureRequest, postgres: Postgres, program: Path, tmp_path: Path
) -> Iterator[Installation]:
    with ExitStack() as stack:
        yield _install(stack, tmp_path, program, postgres if request.param == "postgresql" else None)


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
            role: stack.enter_context(
                httpx.Client(
                    base_url=f"{address}/api/v1",
                    headers={"Authorization": f"Bearer {_mint(found, release, role)}"},
                    trust_env=False,
                    verify=NO_AUTHORITIES,
                    timeout=300,
                )
            )
            for role in ("user", "gateway")
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


def _mint(installation: Installation, release: str, role: str) -> str:
    at_site = ("--site", site.PLAIN) if role == "gateway" else ()
    made = installation.run(release, "token", "--role", role, "--vo", site.VO, *at_site, "--json")
    return str(json.loads(made)["token"])


def test_jobs_go_through_services_of_both_releases(installation: Installation) -> None:
    """Each step of a job's life at the other release than the step before it."""
    for first, second in ((EARLIER, THIS), (THIS, EARLIER)):
        submitted = installation.submit(first)
        wait_until(lambda at=first, job_id=submitted: installation.status(at, job_id) == "Waiting")  # type: ignore[misc]
        given, lease = installation.request_job(second)
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
    submitted = installation.submit(EARLIER)
    wait_until(lambda: installation.status(EARLIER, submitted) == "Waiting")
    _, lease = installation.request_job(EARLIER)
    installation.report(THIS, lease, "release", reason="the pilot ends")
    assert installation.status(EARLIER, submitted) == "Waiting"
    again, lease = installation.request_job(THIS)
    assert again == submitted
    installation.report(EARLIER, lease, "start")
    installation.report(EARLIER, lease, "finish", exit_code=3, status="Failed", minor_status="exit 3")
    assert installation.status(THIS, submitted) == "Failed"
