"""A genuine generic pilot of DIRAC: it takes jobs of another user, whose proxy a ProxyManager gives it.

It is in filling mode: after one job it takes the next, with the CPU time that is left, unless one failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo.on_dirac import configure
from examples.servers import dirac, dirac_package, starting
from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac import GenuineDirac, Slot
from tests.support.fakes.proxy_manager import proxy_manager
from tests.support.processes import Supervised

RESOURCES = """
Resources:
  Sites: {LCG.North.org: {VO: [lhcb], CEs: {ce-north: {Queues: {long: {CPUTime: 1000000}}}}}}
Operations: {Defaults: {JobScheduling: {RescheduleDelays: [0]}}}
Registry:
  VO: {lhcb: {}}
  Users: {ada: {DN: /DC=test/CN=ada}, pia: {DN: /DC=test/CN=pia}}
  Groups:
    lhcb_user: {VO: lhcb, Users: [ada], Properties: [NormalUser]}
    lhcb_pilot: {VO: lhcb, Users: [pia], Properties: [GenericPilot]}
"""
JDL = """\
Executable = "who.sh";
StdOutput = "std.out";
InputSandbox = {"who.sh"};
OutputSandbox = {"std.out"};
CPUTime = 500;
"""
FAILING = """\
Executable = "fail.sh";
InputSandbox = {"fail.sh"};
CPUTime = 500;
"""
SLOT = Slot(site="LCG.North.org", ce="ce-north", queue="long")
PATIENCE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A door with genuine clients: a user, and a pilot to which a ProxyManager gives the user's proxy."""

    genuine: GenuineDirac
    user: Path  #: proxies
    pilot: Path
    work: Path  #: directory of the user
    asked: Sequence[tuple[Any, ...]]  #: calls of the ProxyManager

    def submit(self, jdl: str) -> str:
        """What the command prints."""
        (self.work / "job.jdl").write_text(jdl)
        return self.genuine.run(self.user, "dirac-wms-job-submit", "job.jdl", directory=self.work).stdout

    def run_agent(self, name: str, options: Mapping[str, object] | None = None) -> str:
        """The log of a JobAgent that has ended."""
        agent = self.genuine.start_job_agent(name, SLOT, self.pilot, options)
        try:
            agent.wait(PATIENCE)
        finally:
            dirac.kill([agent])
        return (self.genuine.directory / f"{name}.log").read_text()

    def list_statuses(self, *job_ids: int) -> str:
        """What the user sees of jobs."""
        return self.genuine.run(self.user, "dirac-wms-job-status", *map(str, job_ids)).stdout


@pytest.fixture
def grid(sqlite_url: str, tmp_path: Path) -> Iterator[Grid]:
    authority = Authority(tmp_path)
    host, owner, pilot = (authority.sign(name) for name in ("host", "ada", "pia"))
    authorities, port = authority.link_by_hash(), starting.free_port()
    url = f"https://localhost:{port}"
    (tmp_path / "resources.yaml").write_text(RESOURCES)
    with proxy_manager({"/DC=test/CN=ada": owner}, host) as (manager, calls):
        services = dict.fromkeys((*dirac.MOVED, *dirac.ALONE), url)
        tree: Any = configure(url, services)
        tree["Systems"]["Framework"] = {"URLs": {"ProxyManager": manager}}
        tree["Registry"]["Users"]["pia"] = {"DN": "/DC=test/CN=pia"}
        group = {"Users": "pia", "VO": "lhcb", "Properties": "GenericPilot, LimitedDelegation"}
        tree["Registry"]["Groups"]["lhcb_pilot"] = group
        (tmp_path / "cs.cfg").write_text("\n".join(dirac.write_cfg(tree)))
        arguments = [
            *("dirac-door", "--port", str(port), "--tls-certificate", str(host[0])),
            *("--tls-key", str(host[1]), "--authorities", str(authorities)),
            *("--resources", str(tmp_path / "resources.yaml"), "--configuration", str(tmp_path / "cs.cfg")),
        ]
        environment = {"PILOTAGE_HOME": str(tmp_path / "home"), "PILOTAGE_DATABASE_URL": sqlite_url}
        for name in ("dirac", "work"):
            (tmp_path / name).mkdir()
        genuine = GenuineDirac(
            python=dirac_package.install(), directory=tmp_path / "dirac", url=url, authorities=authorities
        )
        with Supervised("door", arguments, env=environment, log=tmp_path / "door.log") as door:
            starting.wait_until(lambda: "answers" in door.log.read_text(), PATIENCE)
            yield Grid(
                genuine=genuine,
                user=make_proxy(*owner, tmp_path / "ada.proxy", group="lhcb_user", days=7),
                pilot=make_proxy(*pilot, tmp_path / "pia.proxy", group="lhcb_pilot", days=7),
                work=tmp_path / "work",
                asked=calls,
            )
        assert "Traceback" not in door.log.read_text(), door.log.read_text()


@pytest.mark.debian("dirac")
@pytest.mark.timeout(1500)
def test_a_generic_pilot_runs_the_jobs_of_another_with_their_owners_proxy(grid: Grid) -> None:
    (grid.work / "who.sh").write_text("#!/bin/sh\nopenssl x509 -noout -subject -in $X509_USER_PROXY\n")
    for number in (1, 2):
        said = grid.submit(JDL)
        assert f"JobID = {number}" in said, said
    reference = "https://ce-north/generic"
    grid.genuine.run(grid.pilot, "dirac-admin-add-pilot", reference, "lhcb", "DIRAC", "abc")
    log = grid.run_agent("generic")
    shown = grid.list_statuses(1, 2)
    assert shown.count("Status=Done") == 2, shown + log
    grid.genuine.run(grid.user, "dirac-wms-job-get-output", "1", directory=grid.work)
    assert "ada" in (grid.work / "1" / "std.out").read_text()
    assert ("getProxy", ["/DC=test/CN=ada", "lhcb_user"]) in map(tuple, grid.asked)
    shown = grid.genuine.run(grid.pilot, "dirac-admin-get-pilot-info", reference).stdout
    assert "Done" in shown


@pytest.mark.debian("dirac")
@pytest.mark.timeout(1500)
def test_a_generic_pilot_whose_payload_failed_takes_no_other_job(grid: Grid) -> None:
    (grid.work / "fail.sh").write_text("#!/bin/sh\nexit 3\n")
    for _ in range(2):
        grid.submit(FAILING)
    log = grid.run_agent("failing", {"StopOnApplicationFailure": "yes"})
    shown = grid.list_statuses(1, 2)
    assert (shown.count("Status=Failed"), shown.count("Status=Waiting")) == (1, 1), shown + log
    assert "Error during a payload execution" in log, log
    assert "KeyError" not in log, log
