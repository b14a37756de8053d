"""A genuine SiteDirector submits pilots for our waiting jobs to our `local` batch system, without MySQL."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cs_config import validate
from cs_config.formats import dirac_text
from cs_config.source.sections import merge_sections, to_plain
from examples.demo.on_dirac import configure
from examples.servers import dirac, dirac_package, starting
from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac import GenuineDirac
from tests.support.fakes.proxy_manager import proxy_manager
from tests.support.processes import Supervised
from tests.support.scripts import slurm_commands_of_local

RESOURCES = """
Resources:
  Sites:
    LCG.North.org:
      VO: [lhcb]
      CEs:
        ce-north:
          CEType: Local
          BatchSystem: SLURM
          SharedArea: {shared}
          Queues: {{local: {{CPUTime: 1000000, MaxWaitingJobs: 5, MaxTotalJobs: 5}}}}
Operations: {{Defaults: {{JobScheduling: {{RescheduleDelays: [0]}}}}}}
Registry:
  VO: {{lhcb: {{}}}}
  Users: {{ada: {{DN: /DC=test/CN=ada}}, pia: {{DN: /DC=test/CN=pia}}}}
  Hosts: {{directors: {{DN: /DC=test/CN=directors, Properties: [TrustedHost]}}}}
  Groups:
    lhcb_user: {{VO: lhcb, Users: [ada], Properties: [NormalUser]}}
    lhcb_pilot: {{VO: lhcb, Users: [pia], Properties: [GenericPilot]}}
"""
JDL = """\
Executable = "/bin/echo";
Arguments = "from the node";
StdOutput = "std.out";
OutputSandbox = {"std.out"};
CPUTime = 500;
"""
#: In place of Pilot 3, which installs DIRAC on the node: the installed JobAgent, with the pilot's options.
PILOT = """\
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from examples.servers.dirac import GenuineDirac, Slot
given = dict(zip(sys.argv, sys.argv[1:]))
genuine = GenuineDirac(
    python=Path({python!r}), directory=Path.cwd(), url={url!r}, authorities=Path({authorities!r})
)
slot = Slot(site=given["-n"], ce=given["-N"], queue=given["-Q"])
reference = f"sshslurm://{{slot.ce}}/{{os.environ['SLURM_JOB_ID']}}"
agent = genuine.start_job_agent("agent", slot, Path(os.environ["X509_USER_PROXY"]), reference=reference)
status = agent.wait()
print(Path("agent.log").read_text())
sys.exit(status)
"""
PATIENCE = 600.0
ROOT = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Field:
    """A door with two jobs that wait, a genuine DIRAC, and how its director is run."""

    genuine: GenuineDirac
    user: Path
    door: Supervised
    environment: dict[str, str]
    shared: Path

    def run_director(self) -> str:
        """One cycle; its log."""
        options = {"UseServerCertificate": "yes", "CertFile": "directors.pem", "KeyFile": "directors.key"}
        words = [
            f"-o/DIRAC/Security/{name}={value.replace('directors.', str(self.shared.parent / 'directors.'))}"
            for name, value in options.items()
        ]
        done = self.genuine.run(
            self.user, "dirac-agent", "WorkloadManagement/SiteDirector", *words, "-ddd", check=False
        )
        return done.stdout + done.stderr

    def read_pilots(self) -> list[dict[str, Any]]:
        """The pilots, as a client of the door's PilotManager reads them."""
        code = (
            "import json; from DIRAC import initialize; initialize()\n"
            "from DIRAC.WorkloadManagementSystem.Client.PilotManagerClient import PilotManagerClient\n"
            "client = PilotManagerClient(); found = client.selectPilots({'VO': 'lhcb'})['Value']\n"
            "told = client.getPilotInfo(found)['Value'] if found else {}\n"
            "print('PILOTS', json.dumps(list(told.values()), default=str))"
        )
        admin = self.shared.parent / "pia.proxy"
        text = self.genuine.run(admin, "python", "-c", code).stdout
        found: list[dict[str, Any]] = json.loads(text.rpartition("PILOTS")[2])
        return found


@pytest.fixture
def field(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    authority = Authority(tmp_path)
    people = {name: authority.sign(name) for name in ("host", "ada", "pia", "directors")}
    authorities, port = authority.link_by_hash(), starting.free_port()
    url, shared = f"https://localhost:{port}", tmp_path / "shared"
    resources = RESOURCES.format(shared=shared)
    (tmp_path / "resources.yaml").write_text(resources)
    (tmp_path / "dirac").mkdir()
    genuine = GenuineDirac(
        python=dirac_package.install(), directory=tmp_path / "dirac", url=url, authorities=authorities
    )
    _write_pilot(tmp_path / "pilot", genuine)
    slurm_commands_of_local.write_commands(tmp_path / "commands", tmp_path / "jobs")
    monkeypatch.setenv("PATH", str(tmp_path / "commands"), prepend=":")
    monkeypatch.setenv("USER", "ada")
    with proxy_manager({f"/DC=test/CN={name}": people[name] for name in ("ada", "pia")}, people["host"]) as (
        manager,
        _,
    ):
        _write_cs(tmp_path / "cs.cfg", resources, url, manager, tmp_path / "pilot")
        certificate, key = people["host"]
        arguments = [
            *("dirac-door", "--port", str(port), "--tls-certificate", str(certificate)),
            *("--tls-key", str(key), "--authorities", str(authorities)),
            *("--resources", str(tmp_path / "resources.yaml"), "--configuration", str(tmp_path / "cs.cfg")),
        ]
        environment = {"PILOTAGE_HOME": str(tmp_path / "home"), "PILOTAGE_DATABASE_URL": postgres_url}
        with Supervised("door", arguments, env=environment, log=tmp_path / "door.log") as door:
            starting.wait_until(lambda: "answers" in door.log.read_text(), PATIENCE)
            user = make_proxy(*people["ada"], tmp_path / "ada.proxy", group="lhcb_user", days=7)
            make_proxy(*people["pia"], tmp_path / "pia.proxy", group="lhcb_pilot", days=7)
            yield Field(genuine, user, door, environment, shared)
        assert "Traceback" not in door.log.read_text(), door.log.read_text()


def _write_pilot(directory: Path, genuine: GenuineDirac) -> None:
    """The files that a SiteDirector's wrapper fetches."""
    directory.mkdir()
    (directory / "dirac-pilot.py").write_text(
        PILOT.format(
            root=ROOT, python=str(genuine.python), url=genuine.url, authorities=str(genuine.authorities)
        )
    )
    with tarfile.open(directory / "pilot.tar", "w") as archive:
        archive.add(directory / "dirac-pilot.py", "dirac-pilot.py")
    (directory / "pilot.json").write_text("{}")
    (directory / "checksums.sha512").write_text("")


def _write_cs(file: Path, resources: str, url: str, manager: str, pilot: Path) -> None:
    """The configuration of DIRAC: our sites, as they are exported, and what its SiteDirector needs."""
    tree: Any = configure(url, dict.fromkeys((*dirac.MOVED, *dirac.ALONE), url))
    del tree["Resources"]["Sites"]
    tree["Systems"]["Framework"] = {"URLs": {"ProxyManager": manager}}
    options = {"PollingTime": 1, "MaxCycles": 1, "VO": "lhcb", "SendPilotAccounting": "no"}
    tree["Systems"]["WorkloadManagement"]["Agents"] = {"SiteDirector": options}
    tree["Registry"]["Users"]["pia"] = {"DN": "/DC=test/CN=pia"}
    pilots = {"Users": "pia", "VO": "lhcb", "Properties": "GenericPilot, LimitedDelegation"}
    tree["Registry"]["Groups"]["lhcb_pilot"] = pilots
    tree["Registry"]["Hosts"] = {"directors": {"DN": "/DC=test/CN=directors", "Properties": "TrustedHost"}}
    tree["Operations"]["Defaults"]["Pilot"] = {
        "GenericPilotGroup": "lhcb_pilot",
        "GenericPilotUser": "pia",
        "pilotFileServer": f"file:{pilot}",
    }
    sites = dirac_text.export_dirac(validate.parse(resources, version=1).tree).text
    sections = [dirac_text.read_text(text, "") for text in ("\n".join(dirac.write_cfg(tree)), sites)]
    merged: Any = to_plain(merge_sections(*sections))
    file.write_text("\n".join(dirac_text.write_text(merged)) + "\n")


@pytest.mark.debian("dirac")
@pytest.mark.timeout(1800)
def test_a_site_director_submits_pilots_that_run_the_waiting_jobs(field: Field, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.jdl").write_text(JDL)
    for number in (1, 2):
        told = field.genuine.run(field.user, "dirac-wms-job-submit", "job.jdl", directory=work).stdout
        assert f"JobID = {number}" in told, told
    starting.wait_until(lambda: _show(field).count("Status=Waiting") == 2, PATIENCE)

    log = field.run_director()
    pilots = field.read_pilots()
    assert len(pilots) == 2, log
    for each in pilots:
        where = [each[name] for name in ("GridSite", "DestinationSite", "Queue", "VO")]
        assert where == ["LCG.North.org", "ce-north", "local", "lhcb"], each
    outputs = field.shared / "data"
    try:
        starting.wait_until(lambda: _show(field).count("Status=Done") == 2, PATIENCE)
    except TimeoutError:
        texts = [file.read_text(errors="replace") for file in outputs.glob("*")]
        pytest.fail("\n".join([log, _show(field), *texts]))
    # All have run: no further pilots are submitted, and those that have ended are seen as ended.
    jobs = tmp_path / "jobs"
    starting.wait_until(lambda: len(list(jobs.glob("*/exit"))) == 2, PATIENCE)
    again = field.run_director()
    pilots = field.read_pilots()
    assert [each["Status"] for each in pilots] == ["Done", "Done"], again
    assert sorted(job for each in pilots for job in each.get("Jobs", [])) == [1, 2]


def _show(field: Field) -> str:
    return field.genuine.run(field.user, "dirac-wms-job-status", "1", "2").stdout
