"""An upgrade without a stop: services of the last release and of this one share a database."""

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
from examples.servers.starting import wait_until
from taskqueue.db import database
from tests.acceptance.campaign import site
from tests.support import databases, earlier_release, scope_counters
from tests.support.installation import Installation

EARLIER, THIS = "earlier", "this"
OFFER = {"GridCE": "ce", "Queue": "q", "CPUTime": 100_000}


@dataclass(frozen=True)
class BothReleases:
    """A service of each release, on one home directory and one database, whose schema was upgraded."""

    installation: Installation
    programs: Mapping[str, Mapping[str, str]]  #: what the environment of the processes has more, by release
    clients: Mapping[str, Mapping[str, httpx.Client]]  #: by release of the service, and user or site

    def run(self, release: str, *arguments: str) -> str:
        """A command of a release."""
        return self.installation.run(*arguments, **self.programs[release])

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

    def wait_for_job(self, release: str, at: str = site.PLAIN) -> tuple[int, str]:
        """The same, as soon as the service of a release knows of a job that the other one has prepared."""
        found = wait_until(lambda: self.request_job(release, at))
        assert found is not None
        return found

    def report(self, release: str, lease: str, call: str, *, at: str = site.PLAIN, **body: object) -> None:
        self.clients[release][at].post(f"/leases/{lease}/{call}", json=body).raise_for_status()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the earlier release."""
    program = earlier_release.unpack(tmp_path_factory.mktemp("program"))
    assert _locate_program({"PYTHONPATH": str(program)}).is_relative_to(program)
    return program


@pytest.fixture(scope="module", params=databases.LAYOUTS)
def both(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BothReleases]:
    """One for all tests, which leave no job behind."""
    with ExitStack() as stack:
        home = tmp_path_factory.mktemp("home")
        url = _restore(stack, home, None if request.param == "sqlite" else postgres)
        environment = {"PILOTAGE_HOME": str(home), "PILOTAGE_DATABASE_URL": url}
        installed = _install(Installation(home, environment, stack), program)
        if request.param == "partitions":  # beside services of both
            assert "job log: in 8 partitions" in installed.run(THIS, "db", "partition")
        yield installed


def _restore(stack: ExitStack, home: Path, postgres: Postgres | None) -> str:
    """A database with the schema of the earlier release."""
    if postgres is None:
        earlier_release.restore_sqlite(home / "pilotage.db")
        return f"sqlite:///{home / 'pilotage.db'}"
    postgres.execute("CREATE DATABASE earlier")
    stack.callback(postgres.execute, "DROP DATABASE earlier WITH (FORCE)")
    earlier_release.restore_postgresql(postgres, "earlier")
    return postgres.url("earlier")


def _install(installation: Installation, program: Path) -> BothReleases:
    resources = installation.home / "resources.yaml"
    resources.write_text(site.LASTING)
    programs = {EARLIER: {"PYTHONPATH": str(program)}, THIS: {}}
    clients: dict[str, dict[str, httpx.Client]] = {}
    installation.run("db", "upgrade")
    # The configuration is stored by the earlier one, as it was there first.
    for release, own in programs.items():
        url = installation.serve(release, "--resources", str(resources), **own)
        clients[release] = {
            who: installation.client(url, _mint(installation, who, own))
            for who in ("user", site.PLAIN, site.LIMITED)
        }
    return BothReleases(installation, programs, clients)


def _locate_program(environment: Mapping[str, str]) -> Path:
    """The file that the command `pilotage` of a release runs."""
    where = [sys.executable, "-P", "-c", "import pilotage.cli.application as a; print(a.__file__)"]
    return Path(subprocess.check_output(where, env={**os.environ, **environment}, text=True).strip())


def _mint(installation: Installation, who: str, program: Mapping[str, str]) -> str:
    rights = ["user"] if who == "user" else ["gateway", "--site", who]
    return installation.token(*rights, "--vo", site.VO, **program)


def test_jobs_go_through_services_of_both_releases(both: BothReleases) -> None:
    """Each step of a job's life at the other release than the step before it."""
    for first, second in ((EARLIER, THIS), (THIS, EARLIER)):
        [submitted] = both.submit(first)
        given, lease = both.wait_for_job(second)
        assert given == submitted
        both.report(first, lease, "start")
        both.report(second, lease, "heartbeat", progress="half")
        both.run(first, "agent", "all", "--once")
        both.report(first, lease, "finish", exit_code=0, status="Done", minor_status="")
        both.run(second, "agent", "all", "--once")
        assert [both.status(each, submitted) for each in (EARLIER, THIS)] == ["Done", "Done"]


def test_a_job_that_an_earlier_service_handed_out_is_given_back_to_this_one(
    both: BothReleases,
) -> None:
    [submitted] = both.submit(EARLIER)
    _, lease = both.wait_for_job(EARLIER)
    both.report(THIS, lease, "release", reason="the pilot ends")
    assert both.status(EARLIER, submitted) == "Waiting"
    again, lease = both.wait_for_job(THIS)
    assert again == submitted
    both.report(EARLIER, lease, "start")
    both.report(EARLIER, lease, "finish", exit_code=3, status="Failed", minor_status="exit 3")
    assert both.status(THIS, submitted) == "Failed"


def test_services_of_both_releases_hold_one_limit_together(both: BothReleases) -> None:
    both.submit(THIS, site.MOST + 2, JobType=site.KIND, Site=site.LIMITED)
    leases: list[str] = []
    for release in ((EARLIER, THIS) * site.MOST)[: site.MOST]:
        _, lease = both.wait_for_job(release, site.LIMITED)
        leases.append(lease)
    assert [both.request_job(each, site.LIMITED) for each in (EARLIER, THIS)] == [None, None]
    for first, second in ((EARLIER, THIS), (THIS, EARLIER)):  # what ends at one makes room at the other
        _end(both, first, leases.pop())
        _, lease = both.wait_for_job(second, site.LIMITED)
        leases.append(lease)
        assert [both.request_job(each, site.LIMITED) for each in (EARLIER, THIS)] == [None, None]
    engine = database.connect(both.installation.environment["PILOTAGE_DATABASE_URL"])
    assert scope_counters.agree(engine)
    for lease in leases:
        _end(both, EARLIER, lease)
    assert scope_counters.agree(engine)
    engine.dispose()


def _end(both: BothReleases, release: str, lease: str) -> None:
    both.report(release, lease, "start", at=site.LIMITED)
    both.report(release, lease, "finish", at=site.LIMITED, exit_code=0, status="Done", minor_status="")
