"""A genuine generic pilot of DIRAC: it takes jobs of another user, whose proxy a ProxyManager gives it.

It is in filling mode: after one job it takes the next, with the CPU time that is left.
"""

from pathlib import Path
from typing import Any

import pytest

from examples.demo.on_dirac import configure
from examples.servers import dirac, dirac_package, starting
from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac import GenuineDirac, Slot
from tests.acceptance.processes import Supervised
from tests.proxy_manager import proxy_manager

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
PATIENCE = 600.0


@pytest.mark.debian("dirac")
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_generic_pilot_runs_the_jobs_of_another_with_their_owners_proxy(
    sqlite_url: str, tmp_path: Path
) -> None:
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
        door = Supervised("door", arguments, env=environment, log=tmp_path / "door.log")
        door.start()
        (tmp_path / "dirac").mkdir()
        genuine = GenuineDirac(
            python=dirac_package.install(), directory=tmp_path / "dirac", url=url, authorities=authorities
        )
        user = make_proxy(*owner, tmp_path / "ada.proxy", group="lhcb_user", days=7)
        pilots = make_proxy(*pilot, tmp_path / "pia.proxy", group="lhcb_pilot", days=7)
        work = tmp_path / "work"
        work.mkdir()
        (work / "who.sh").write_text("#!/bin/sh\nopenssl x509 -noout -subject -in $X509_USER_PROXY\n")
        (work / "job.jdl").write_text(JDL)
        agents = []
        try:
            starting.wait_until(lambda: "answers" in door.log.read_text(), PATIENCE)
            for number in (1, 2):
                said = genuine.run(user, "dirac-wms-job-submit", "job.jdl", directory=work).stdout
                assert f"JobID = {number}" in said, said
            slot = Slot(site="LCG.North.org", ce="ce-north", queue="long")
            reference = "https://ce-north/generic"
            genuine.run(pilots, "dirac-admin-add-pilot", reference, "lhcb", "DIRAC", "abc")
            agents.append(genuine.start_job_agent("generic", slot, pilots))
            agents[0].wait(PATIENCE)
            log = (tmp_path / "dirac" / "generic.log").read_text()
            shown = genuine.run(user, "dirac-wms-job-status", "1", "2").stdout
            assert shown.count("Status=Done") == 2, shown + log
            genuine.run(user, "dirac-wms-job-get-output", "1", directory=work)
            assert "ada" in (work / "1" / "std.out").read_text()
            assert ("getProxy", ["/DC=test/CN=ada", "lhcb_user"]) in map(tuple, calls)
            shown = genuine.run(pilots, "dirac-admin-get-pilot-info", reference).stdout
            assert "Done" in shown
        finally:
            dirac.kill(agents)
            door.stop()
        assert "Traceback" not in door.log.read_text(), door.log.read_text()
