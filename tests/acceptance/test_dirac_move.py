"""A DIRAC moves VO by VO: the former services have its own protocols and rules of access."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac import write_cfg
from examples.servers.dirac_package import install
from examples.servers.starting import free_port
from tests.acceptance.test_dirac_door import JDL, PATIENCE, RESOURCE, RESOURCES, is_open
from tests.support.dirac.clients import GenuineClients
from tests.support.installation import Installation
from tests.support.processes import Supervised

pytestmark = [pytest.mark.debian("dirac"), pytest.mark.timeout(1800)]

FIRST = 2_000_000_000
NAMES = ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")
#: Users of both VOs, and the host of the door, which the former services trust.
REGISTRY = RESOURCES.replace("VO: dune, Users: [dan]", "VO: dune, Users: [dan, pia]").replace(
    "    dune_pilot:", "    dune_user: {VO: dune, Users: [dan], Properties: [NormalUser]}\n    dune_pilot:"
)
#: The registry of the former services: the host of the door may act for others.
FORMER_REGISTRY = {
    "Users": {name: {"DN": f"/DC=test/CN={name}"} for name in ("ada", "dan", "pia")},
    "Hosts": {"door": {"DN": "/DC=test/CN=host", "Properties": "TrustedHost"}},
    "Groups": {
        "lhcb_user": {"Users": "ada", "VO": "lhcb", "Properties": "NormalUser"},
        "lhcb_pilot": {"Users": "pia", "VO": "lhcb", "Properties": "GenericPilot"},
        "dune_user": {"Users": "dan", "VO": "dune", "Properties": "NormalUser"},
        "dune_pilot": {"Users": "dan", "VO": "dune", "Properties": "GenericPilot"},
    },
}

#: Three sites of two VOs, as the Configuration Server publishes them.
SITES = {
    "Resources": {
        "Computing": {"CEDefaults": {"VO": "lhcb, dune"}},
        "Sites": {
            "LCG": {
                "LCG.A.org": {"CEs": {"ce1": {"Queues": {"long": {"CPUTime": 100000}}}}},
                "LCG.B.org": {"CEs": {"ce2": {"Queues": {"long": {"CPUTime": 9000, "VO": "lhcb"}}}}},
            },
            "DIRAC": {"DIRAC.C.org": {"CEs": {"ce3": {"Queues": {"q": {"CPUTime": 9000, "VO": "dune"}}}}}},
        },
    }
}


@dataclass(frozen=True)
class Door:
    """A door of an installation."""

    url: str
    process: Supervised
    installation: Installation


@contextmanager
def started(installation: Installation, name: str, *arguments: str, port: int) -> Iterator[Supervised]:
    """A process that answers at a port; its log has no unexpected errors in the end."""
    process = installation.start(name, *arguments)
    try:
        deadline = time.monotonic() + PATIENCE
        while not is_open(port):
            assert process.is_running, process.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.stop()
    assert "Traceback" not in process.log.read_text(), process.log.read_text()


@contextmanager
def opened(
    directory: Path, top: Path, resources: str, *more: str, database_url: str, **settings: str
) -> Iterator[Door]:
    """A door with certificates of `top`."""
    directory.mkdir()
    (directory / "resources.yaml").write_text(resources)
    port = free_port()
    arguments = [
        *("dirac-door", "--port", str(port), "--tls-certificate", str(top / "host.pem")),
        *("--tls-key", str(top / "host.key"), "--authorities", str(top / "certificates")),
        *("--resources", str(directory / "resources.yaml"), *more),
    ]
    environment = {
        "PILOTAGE_HOME": str(directory / "home"),
        "PILOTAGE_DATABASE_URL": database_url,
        **settings,
    }
    with ExitStack() as stack:
        installation = Installation(directory, environment, stack)
        installation.run("db", "upgrade", *(more[:2] if "--first-job-id" in more else ()))
        process = stack.enter_context(started(installation, "door", *arguments, port=port))
        yield Door(f"https://localhost:{port}", process, installation)


@dataclass(frozen=True)
class Moving:
    """A door with former services behind it, and clients of both."""

    authority: Authority
    directory: Path
    here: Door
    there: subprocess.Popen[bytes]
    configuration_server: str  #: of the former installation
    clients: GenuineClients  #: of the door
    old_clients: GenuineClients  #: of the former services, as before the move and after going back

    def proxy(self, name: str, group: str, label: str = "", **about: Any) -> Path:
        certificate, secret = (self.directory / f"{name}{end}" for end in (".pem", ".key"))
        if not certificate.exists():
            self.authority.sign(name)
        return make_proxy(
            certificate, secret, self.directory / f"{name}-{group}{label}.proxy", group=group, **about
        )

    def submit(self, proxy: Path, *, is_here: bool) -> int:
        """Submit jobs through the door until one is stored where it belongs: changes take effect soon."""
        deadline = time.monotonic() + PATIENCE
        while True:
            [answer] = self.clients.call(proxy, ("JobManagerClient", "submitJob", JDL))
            assert answer["OK"], answer
            job_id: int = answer["Value"]
            if (job_id >= FIRST) is is_here:
                return job_id
            assert self.clients.call(proxy, ("JobManagerClient", "killJob", [job_id]))[0]["OK"]
            assert time.monotonic() < deadline

    def wait(self, proxy: Path, job_ids: Sequence[int], status: str) -> None:
        """Wait until all jobs have a status, at the door."""
        deadline = time.monotonic() + PATIENCE
        while True:
            [answer] = self.clients.call(proxy, ("JobMonitoringClient", "getJobsStatus", list(job_ids)))
            assert answer["OK"], answer
            if {each["Status"] for each in answer["Value"].values()} == {status}:
                assert len(answer["Value"]) == len(job_ids)
                return
            assert time.monotonic() < deadline, answer
            time.sleep(0.5)

    def run(self, clients: GenuineClients, pilot: Path, payload: Path) -> int:
        """Run one job of any VO to its end, as a JobAgent and its JobWrapper do."""
        [match] = clients.call(pilot, ("MatcherClient", "requestJob", RESOURCE))
        assert match["OK"], match
        job_id: int = match["Value"]["JobID"]
        running, done = (
            ("JobStateUpdateClient", "setJobStatus", job_id, status, "", "JobWrapper")
            for status in ("Running", "Done")
        )
        beat = ("JobStateUpdateClient", "sendHeartBeat", job_id, {}, {"StandardOutput": "hello"})
        answers = clients.call(payload, running, beat, done)
        assert [each["OK"] for each in answers] == [True] * 3
        assert answers[1]["Value"] == {}
        return job_id


@contextmanager
def former_services(
    directory: Path, authorities: Path
) -> Iterator[tuple[Mapping[str, str], Mapping[str, str], str, subprocess.Popen[bytes]]]:
    """The URLs of services of a genuine DIRAC: by its own protocol, of two over HTTPS, of its Configuration
    Server; and their process.
    """
    home = directory / "former"
    home.mkdir()
    ports = {name: free_port() for name in (*NAMES, "Server")}
    server = f"dips://localhost:{ports['Server']}/Configuration/Server"
    over_https = free_port()
    services = {
        name: {"Port": port, "Protocol": "dips", "HandlerPath": "services.py"}
        for name, port in ports.items()
        if name in NAMES
    }
    handler = "DIRAC/ConfigurationSystem/Service/ConfigurationHandler.py"
    own = {"Port": ports["Server"], "Protocol": "dips", "HandlerPath": handler}
    master = {"Master": "yes", "Name": "Test", "MasterServer": server, "UpdatePilotCStoJSONFile": "no"}
    security = {
        "CALocation": str(authorities),
        "CertFile": str(directory / "dirac.pem"),
        "KeyFile": str(directory / "dirac.key"),
        "UseServerCertificate": "yes",
    }
    configuration = {
        "DIRAC": {
            "VirtualOrganization": "lhcb",
            "Hostname": "localhost",
            "Security": security,
            "Configuration": master,
        },
        "Systems": {
            "WorkloadManagement": {"Services": services},
            "Configuration": {"Services": {"Server": own}},
        },
        "Registry": FORMER_REGISTRY,
    }
    (home / "dirac.cfg").write_text("\n".join(write_cfg(configuration)))
    (home / "etc").mkdir()
    version = {"DIRAC": {"Configuration": {"Version": "2026-11-23 10:00:00.000000"}}}
    published = {**version, "Registry": FORMER_REGISTRY, **SITES}
    (home / "etc" / "Test.cfg").write_text("\n".join(write_cfg(published)))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "DIRACSYSCONFIG": str(home / "dirac.cfg"),
        "DIRAC_ROOT_PATH": str(home),
        "PYTHONPATH": str(Path(__file__).parents[1] / "support" / "dirac"),
        "X509_CERT_DIR": "",
    }
    command = [
        *(str(install()), "-c", "import services; services.main()"),
        *(str(over_https), str(directory)),
    ]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + PATIENCE
            while not all(map(is_open, [over_https, *ports.values()])):
                assert process.poll() is None, (home / "log").read_text()
                assert time.monotonic() < deadline, (home / "log").read_text()
                time.sleep(0.1)
            dips = {name: f"dips://localhost:{ports[name]}/WorkloadManagement/{name}" for name in NAMES}
            https = {
                name: f"https://localhost:{over_https}/WorkloadManagement/{name}"
                for name in ("JobMonitoring", "JobStateUpdate")
            }
            yield dips, https, server, process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def moving(database_url: str, tmp_path: Path) -> Iterator[Moving]:
    authority = Authority(tmp_path)
    authority.sign("host")
    authority.sign("dirac")
    authorities = authority.link_by_hash()
    with former_services(tmp_path, authorities) as (dips, https, server, there):
        words = [word for url in {**dips, **https}.values() for word in ("--former", url)]
        options = ("--first-job-id", str(FIRST), *words)
        with opened(tmp_path / "here", tmp_path, REGISTRY, *options, database_url=database_url) as here:
            clients = GenuineClients.make(tmp_path / "dirac-1", url=here.url, authorities=authorities)
            old = GenuineClients.make(tmp_path / "dirac-2", url="", authorities=authorities, urls=dips)
            yield Moving(authority, tmp_path, here, there, server, clients, old)


@pytest.fixture
def operator(moving: Moving) -> Iterator[Callable[..., str]]:
    """Commands of an operator, with a service."""
    port, installation = free_port(), moving.here.installation
    with started(installation, "serve", "serve", "--port", str(port), port=port):
        access = {
            "PILOTAGE_URL": f"http://127.0.0.1:{port}",
            "PILOTAGE_TOKEN": installation.token("operator"),
        }
        yield lambda *arguments: installation.run(*arguments, **access)


def test_one_vo_moves_jobs_of_both_run_and_it_goes_back(moving: Moving, operator: Callable[..., str]) -> None:
    ada, dan = moving.proxy("ada", "lhcb_user"), moving.proxy("dan", "dune_user")
    pia, pilot = moving.proxy("pia", "lhcb_pilot"), moving.proxy("dan", "dune_pilot")
    payload, other_payload = (
        moving.proxy("ada", "lhcb_user", "-payload", limited=True),
        moving.proxy("dan", "dune_user", "-payload", limited=True),
    )
    # Before: a job of each VO waits in the former services; they are seen through the door.
    [old] = moving.old_clients.call(ada, ("JobManagerClient", "submitJob", JDL))
    [foreign] = moving.clients.call(dan, ("JobManagerClient", "submitJob", JDL))
    assert (old["Value"], foreign["Value"]) == (1, 2)

    operator("config", "set", "Operations/lhcb/DiracDoor/Moved=true")
    new = moving.submit(ada, is_here=True)
    moving.wait(ada, [old["Value"], new], "Waiting")
    states, listed, summary = moving.clients.call(
        ada,
        ("JobMonitoringClient", "getJobsStatus", [new, str(old["Value"])]),
        ("JobMonitoringClient", "getJobs", {"Status": "Waiting"}),
        ("JobMonitoringClient", "getJobSummary", old["Value"]),
    )
    assert states["Value"] == {str(each): {"Status": "Waiting"} for each in (new, old["Value"])}
    assert listed["Value"] == [str(old["Value"]), str(new)]
    assert summary["Value"]["Owner"] == "ada"
    demand = {"Site": "LCG.A.org", "GridCE": "ce1", "CPUTime": "90000"}
    [queues] = moving.clients.call(pia, ("MatcherClient", "getMatchingTaskQueues", demand))
    assert [each["Jobs"] for each in queues["Value"].values()] == [1, 1]

    shown = moving.clients.run(ada, "dirac-wms-job-status", str(old["Value"]), str(new))
    assert shown.count("Status=Waiting") == 2, shown
    shown = moving.clients.run(pia, "dirac-admin-show-task-queues")
    assert shown.count("lhcb_user") == 2, shown

    # Pilots of the VO take its new jobs here, then what waits there; those of the other VO take theirs there.
    assert moving.run(moving.clients, pia, payload) == new
    assert moving.run(moving.clients, pia, payload) == old["Value"]
    assert moving.run(moving.clients, pilot, other_payload) == foreign["Value"]
    [empty] = moving.clients.call(pia, ("MatcherClient", "requestJob", RESOURCE))
    assert empty["Errno"] == 1510
    moving.wait(ada, [old["Value"], new], "Done")
    parameters, killed = moving.clients.call(
        ada,
        ("JobMonitoringClient", "getJobParameters", [new, old["Value"]]),
        ("JobManagerClient", "deleteJob", [new, old["Value"], foreign["Value"], FIRST + 1000]),
    )
    assert {each["StandardOutput"] for each in parameters["Value"].values()} == {"hello"}
    assert sorted(killed["Value"]) == [old["Value"], new]
    assert (killed["InvalidJobIDs"], killed["NonauthorizedJobIDs"]) == ([FIRST + 1000], [foreign["Value"]])

    # A limited proxy may submit nowhere, though the former services see the certificate of the door.
    [refused] = moving.clients.call(other_payload, ("JobManagerClient", "submitJob", JDL))
    assert (refused["OK"], refused["Errno"]) == (False, 1503)

    # Back: a job that still waits here is run by pilots through the door; new ones are stored there. The
    # refusals of the former services come back as they are.
    left = moving.submit(ada, is_here=True)
    operator("config", "set", "Operations/lhcb/DiracDoor/Moved=false")
    again = moving.submit(ada, is_here=False)
    [refused] = moving.clients.call(pia, ("JobManagerClient", "submitJob", JDL))
    assert refused["Message"].startswith("Unauthorized query")
    moving.wait(ada, [left, again], "Waiting")
    assert moving.run(moving.clients, pia, payload) == left
    assert moving.run(moving.old_clients, pia, payload) == again
    moving.wait(ada, [left, again], "Done")


# The configuration is stored by functions that are tested on both databases.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_genuine_configuration_server_is_imported(moving: Moving, operator: Callable[..., str]) -> None:
    url = moving.configuration_server
    command = ("config", "import", "dirac", url, "--certificate", str(moving.proxy("ada", "lhcb_user")))
    trusted = ("--authorities", str(moving.directory / "certificates"), "--apply", "--guard", "stuck_jobs=0")
    assert "is in force" in operator(*command, *trusted)
    assert json.loads(operator("queue", "list", "--vo", "dune", "--json")) != []
    listed = operator("queue", "list", "--vo", "dune")
    assert ("LCG.A.org" in listed, "LCG.B.org" in listed, "DIRAC.C.org" in listed) == (True, False, True)
    assert "nothing changes" in operator(*command, *trusted)
    with pytest.raises(AssertionError, match=f"has no HTTPS, its URL is {url}"):
        operator("config", "import", "dirac", url.replace("dips:", "https:"), *command[4:], *trusted)
    with pytest.raises(AssertionError, match="require a client certificate"):
        operator("config", "import", "dirac", url, *trusted)


def test_without_the_former_services_the_jobs_here_go_on(
    moving: Moving, operator: Callable[..., str]
) -> None:
    ada, pia = moving.proxy("ada", "lhcb_user"), moving.proxy("pia", "lhcb_pilot")
    operator("config", "set", "Operations/lhcb/DiracDoor/Moved=true")
    job_id = moving.submit(ada, is_here=True)
    moving.wait(ada, [job_id], "Waiting")
    moving.there.kill()
    moving.there.wait()
    assert moving.run(moving.clients, pia, moving.proxy("ada", "lhcb_user", "-payload")) == job_id
    [empty] = moving.clients.call(pia, ("MatcherClient", "requestJob", RESOURCE))
    assert empty["Errno"] == 1510
    status, mixed, killed = moving.clients.call(
        ada,
        ("JobMonitoringClient", "getJobsStatus", [1]),
        ("JobMonitoringClient", "getJobsStatus", [1, job_id]),
        ("JobManagerClient", "deleteJob", [1, job_id]),
    )
    assert not status["OK"]
    assert "cannot be reached" in mixed["Message"]
    assert (killed["Value"], killed["FailedJobIDs"]) == ([job_id], [1])
