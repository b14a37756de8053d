"""Genuine clients of DIRAC, from its own package, against the door over TLS with certificates and proxies."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.servers import dirac_package, starting
from examples.servers.certificates import Authority, make_proxy
from pilotage.plugins.dirac import command as dirac_door
from tests.support.dirac.clients import GenuineClients
from tests.support.processes import PILOTAGE, Supervised

pytestmark = [pytest.mark.debian("dirac"), pytest.mark.timeout(1800)]

RESOURCES = """
Resources:
  Sites:
    LCG.A.org: {VO: [lhcb, dune], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
Operations: {Defaults: {JobScheduling: {RescheduleDelays: [0]}}}
Registry:
  VO: {lhcb: {}, dune: {}}
  Users:
    ada: {DN: /DC=test/CN=ada}
    bob: {DN: /DC=test/CN=bob}
    dan: {DN: /DC=test/CN=dan}
    pia: {DN: /DC=test/CN=pia}
  Hosts:
    rms: {DN: /DC=test/CN=rms, Properties: [TrustedHost, JobAdministrator]}
  Groups:
    lhcb_user: {VO: lhcb, Users: [ada, bob], Properties: [NormalUser]}
    lhcb_prod: {VO: lhcb, Users: [ada, bob], Properties: [NormalUser, JobSharing]}
    lhcb_admin: {VO: lhcb, Users: [bob], Properties: [JobAdministrator]}
    lhcb_pilot: {VO: lhcb, Users: [pia], Properties: [GenericPilot]}
    dune_pilot: {VO: dune, Users: [dan], Properties: [GenericPilot]}
"""
JDL = (
    'Executable = /bin/echo; Arguments = "hello world"; CPUTime = 1000; AncestorDepth = 2;'
    ' InputSandbox = {"SB:SE|/a"}'
)
RESOURCE = {
    "Site": "LCG.A.org",
    "GridCE": "ce1",
    "CEQueue": "long",
    "CPUTime": "90000",
    "PilotReference": "https://ce1/1",
    "PilotBenchmark": 10.5,
    "Platform": "x86_64-el9",
    "MaxRAM": 0,
    "NumberOfProcessors": "1",
    "Tag": "",
    "DIRACVersion": "v9r1p22",
}
#: Seconds for anything that must come to pass.
PATIENCE = 300.0


@dataclass(frozen=True)
class Door:
    """A door with an authority, and clients of it."""

    url: str
    authority: Authority
    directory: Path
    clients: GenuineClients
    process: Supervised

    def proxy(self, name: str, group: str | None, label: str = "", **about: Any) -> Path:
        """A proxy of a person, each with a key of its own; the certificate is made at first."""
        certificate, secret = (self.directory / f"{name}{end}" for end in (".pem", ".key"))
        if not certificate.exists():
            self.authority.sign(name)
        return make_proxy(
            certificate, secret, self.directory / f"{name}-{group}{label}.proxy", group=group, **about
        )

    def wait(self, proxy: Path, job_id: int, status: str) -> None:
        """Wait until the job has a status."""
        deadline = time.monotonic() + PATIENCE
        while True:
            [answer] = self.clients.call(proxy, ("JobMonitoringClient", "getJobsStatus", [job_id]))
            if answer["Value"][str(job_id)]["Status"] == status:
                return
            assert time.monotonic() < deadline, answer
            time.sleep(0.5)


@pytest.fixture
def door(database_url: str, tmp_path: Path) -> Iterator[Door]:
    authority = Authority(tmp_path)
    host, secret = authority.sign("host")
    (tmp_path / "resources.yaml").write_text(RESOURCES)
    port = starting.free_port()
    url = f"https://localhost:{port}"
    arguments = [
        *("dirac-door", "--port", str(port), "--tls-certificate", str(host), "--tls-key", str(secret)),
        *("--authorities", str(authority.link_by_hash()), "--resources", str(tmp_path / "resources.yaml")),
    ]
    environment = {"PILOTAGE_HOME": str(tmp_path / "home"), "PILOTAGE_DATABASE_URL": database_url}
    with Supervised("door", arguments, env=environment, log=tmp_path / "door.log") as process:
        clients = GenuineClients.make(tmp_path / "dirac", url=url, authorities=tmp_path / "certificates")
        starting.wait_until(lambda: is_open(port) or not process.is_running, PATIENCE)
        assert process.is_running, process.log.read_text()
        yield Door(url, authority, tmp_path, clients, process)
    assert "Traceback" not in process.log.read_text(), process.log.read_text()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_job_of_a_genuine_client_is_run_by_a_genuine_pilot(door: Door) -> None:
    user = door.proxy("ada", "lhcb_user")
    [submitted] = door.clients.call(user, ("JobManagerClient", "submitJob", JDL))
    assert submitted["OK"], submitted
    job_id = submitted["Value"]
    assert (submitted["JobID"], submitted["requireProxyUpload"]) == (job_id, True)
    door.wait(user, job_id, "Waiting")

    pilot = door.proxy("pia", "lhcb_pilot")
    stranger = door.proxy("dan", "dune_pilot")
    [none] = door.clients.call(stranger, ("MatcherClient", "requestJob", RESOURCE))
    assert (none["OK"], none["Errno"]) == (False, 1510)
    demand = {"Site": "LCG.A.org", "GridCE": "ce1", "CPUTime": "90000"}
    queues, match, empty = door.clients.call(
        pilot,
        ("MatcherClient", "getMatchingTaskQueues", demand),
        ("MatcherClient", "requestJob", RESOURCE),
        ("MatcherClient", "requestJob", RESOURCE),
    )
    assert [(each["OwnerGroup"], each["Jobs"]) for each in queues["Value"].values()] == [("lhcb_user", 1)]
    got = match["Value"]
    assert (got["JobID"], got["Owner"], got["Group"]) == (job_id, "ada", "lhcb_user")
    assert got["DN"] == "/DC=test/CN=ada"
    assert empty["Errno"] == 1510

    payload = door.proxy("ada", "lhcb_user", "-payload", limited=True)
    now = datetime.now(UTC).replace(tzinfo=None)
    times = {
        str(now): {
            "Status": "Running",
            "MinorStatus": "Job Initialization",
            "Source": "JobWrapper",
        },
        str(now - timedelta(seconds=1)): {"MinorStatus": "Installing Software", "Source": "JobAgent"},
    }
    *answers, over = door.clients.call(
        payload,
        ("JobStateUpdateClient", "setJobStatusBulk", job_id, times),
        ("JobStateUpdateClient", "setJobApplicationStatus", job_id, "event 7 of 10"),
        ("JobStateUpdateClient", "setJobParameters", job_id, [["CPU(s)", 5], ["HostName", "node7"]]),
        ("JobStateUpdateClient", "sendHeartBeat", job_id, {"CPUConsumed": 1.0}, {"StandardOutput": "hello"}),
        ("JobStateUpdateClient", "setJobStatus", job_id, "Done", "Execution Complete", "JobWrapper"),
        ("JobStateUpdateClient", "setJobParameter", job_id, "OutputSandbox", "uploaded"),
        ("JobStateUpdateClient", "setJobStatus", job_id, "Failed", "too late", "JobWrapper"),
        ("JobStateUpdateClient", "sendHeartBeat", job_id, {}, {}),
    )
    assert [each["OK"] for each in answers] == [True] * 7
    assert (answers[3]["Value"], over["Value"]) == ({}, {})

    states, parameters, history, jdl, listed, other = door.clients.call(
        user,
        ("JobMonitoringClient", "getJobsStates", [job_id]),
        ("JobMonitoringClient", "getJobParameters", [job_id]),
        ("JobMonitoringClient", "getJobLoggingInfo", job_id),
        ("JobMonitoringClient", "getJobJDL", job_id, True),
        ("JobMonitoringClient", "getJobs", {"Status": "Done", "JobType": "User"}, "2026-01-01"),
        ("JobMonitoringClient", "getJobs", {"Status": "Waiting"}),
    )
    assert states["Value"][str(job_id)] == {
        "Status": "Done",
        "MinorStatus": "Execution Complete",
        "ApplicationStatus": "event 7 of 10",
    }
    assert parameters["Value"][str(job_id)] == {
        "CPU(s)": "5",
        "CPUConsumed": "1.0",
        "HostName": "node7",
        "OutputSandbox": "uploaded",
        "StandardOutput": "hello",
    }
    statuses = list(dict.fromkeys(line[0] for line in history["Value"]))
    assert statuses == ["Received", "Waiting", "Matched", "Running", "Done"]
    for line in ('Arguments = "hello world";', 'AncestorDepth = "2";', "InputSandbox = {SB:SE|/a};"):
        assert line in jdl["Value"]
    assert (listed["Value"], other["Value"]) == ([str(job_id)], [])


def test_a_killed_payload_learns_it_and_others_see_no_jobs(door: Door) -> None:
    user, pilot = door.proxy("ada", "lhcb_user"), door.proxy("pia", "lhcb_pilot")
    shared = door.proxy("ada", "lhcb_prod")
    [submitted] = door.clients.call(user, ("JobManagerClient", "submitJob", JDL))
    [parametric] = door.clients.call(
        shared,
        ("JobManagerClient", "submitJob", "Executable = /bin/echo; Arguments = %s; Parameters = {a, b}"),
    )
    job_id, [one, two] = submitted["Value"], parametric["Value"]

    bob, mate, admin = (door.proxy("bob", group) for group in ("lhcb_user", "lhcb_prod", "lhcb_admin"))
    seen, jdl, kill, status, listed = door.clients.call(
        bob,
        ("JobMonitoringClient", "getJobsStatus", [job_id, one]),
        ("JobMonitoringClient", "getJobJDL", job_id, False),
        ("JobManagerClient", "killJob", [job_id]),
        ("JobStateUpdateClient", "setJobStatus", job_id, "Done", "", "me"),
        ("JobMonitoringClient", "getJobs", {}),
    )
    assert (seen["Value"], listed["Value"]) == ({}, [])
    assert not jdl["OK"]
    assert "does not exist" in jdl["Message"]
    assert (kill["OK"], kill["InvalidJobIDs"], status["OK"]) == (False, [job_id], False)
    seen, listed, kill = door.clients.call(
        mate,
        ("JobMonitoringClient", "getJobsStatus", [job_id, one]),
        ("JobMonitoringClient", "getJobs", {"JobType": "User"}),
        ("JobManagerClient", "killJob", [one, job_id]),
    )
    assert list(seen["Value"]) == [str(one)]
    assert listed["Value"] == [str(one), str(two)]
    assert (kill["Value"], kill["InvalidJobIDs"]) == ([one], [job_id])

    door.wait(user, job_id, "Waiting")
    door.wait(shared, two, "Waiting")
    matches = door.clients.call(pilot, *[("MatcherClient", "requestJob", RESOURCE)] * 2)
    assert {each["Value"]["JobID"] for each in matches} == {job_id, two}
    [beat] = door.clients.call(pilot, ("JobStateUpdateClient", "sendHeartBeat", job_id, {}, {}))
    assert beat["Value"] == {}
    [killed] = door.clients.call(admin, ("JobManagerClient", "killJob", job_id))
    assert killed["Value"] == [job_id]
    beat, ended = door.clients.call(
        pilot,
        ("JobStateUpdateClient", "sendHeartBeat", job_id, {}, {}),
        ("JobStateUpdateClient", "setJobStatus", job_id, "Killed", "Marked for termination", "JobWrapper"),
    )
    assert (beat["Value"], ended["OK"]) == ({"Kill": ""}, True)
    door.wait(user, job_id, "Killed")
    [reset] = door.clients.call(user, ("JobManagerClient", "resetJob", [two]))
    assert "only a JobAdministrator may reset jobs" in reset["Message"]
    [deleted] = door.clients.call(user, ("JobManagerClient", "deleteJob", [job_id]))
    assert deleted["Value"] == [job_id]
    door.wait(user, job_id, "Deleted")


def _ask(door: Door, proxy: Path, *, key: Path | None = None, data: str = "") -> tuple[int, str]:
    """The status and the text of an answer to `whoami`, from a client that trusts the door.

    Where TLS fails, 0 and what the client says.
    """
    data = data or "method=whoami&args=[]"
    command = [
        *("curl", "--silent", "--show-error", "--cacert", str(door.authority.certificate)),
        *("--cert", str(proxy), "--key", str(key or proxy), "--write-out", "\n%{http_code}", "--data", data),
        f"{door.url}/WorkloadManagement/Matcher",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text or done.stderr


def test_only_valid_certificates_with_a_group_of_the_registry_are_accepted(
    door: Door, tmp_path: Path
) -> None:
    assert _ask(door, door.proxy("ada", "lhcb_user"))[0] == 200
    limited = door.proxy("ada", "lhcb_user", "-limited", limited=True)
    assert json.loads(_ask(door, limited)[1])["Value"]["isLimitedProxy"]
    [refused] = door.clients.call(limited, ("JobManagerClient", "submitJob", JDL))
    assert (refused["OK"], refused["Errno"]) == (False, 1503)
    nested = make_proxy(limited, limited, tmp_path / "nested.proxy", group="lhcb_admin")
    assert json.loads(_ask(door, nested)[1])["Value"]["group"] == "lhcb_user"  # the owner's own choice

    status, said = _ask(door, door.proxy("ada", "lhcb_user", "-expired", days=-1))
    assert (status, "alert certificate expired" in said) == (0, True), said
    starting.wait_until(
        lambda: "is refused: certificate has expired" in door.process.log.read_text(), PATIENCE
    )
    assert _ask(door, door.proxy("ada", "lhcb_admin", "-wrong"))[0] == 401
    assert _ask(door, door.proxy("ada", "nobody", "-unknown"))[0] == 401
    assert _ask(door, door.proxy("ada", None, "-none"))[0] == 401
    assert _ask(door, door.proxy("eve", "lhcb_user"))[0] == 401
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").sign("ada")
    status, said = _ask(door, make_proxy(*foreign, tmp_path / "foreign.proxy", group="lhcb_user"))
    assert (status, "alert unknown ca" in said) == (0, True), said

    submission = ("JobManagerClient", "submitJob", JDL)
    for proxy in ("ada-lhcb_user-expired", "ada-lhcb_admin-wrong", "ada-None-none", "foreign"):
        [answer] = door.clients.call(tmp_path / f"{proxy}.proxy", submission)
        assert not answer["OK"], (proxy, answer)
    [mine] = door.clients.call(door.proxy("ada", "lhcb_user"), submission)
    [seen] = door.clients.call(
        door.proxy("dan", "dune_pilot"), ("JobMonitoringClient", "getJobsStatus", [mine["Value"]])
    )
    assert seen["Value"] == {}  # of another VO

    host = door.authority.sign("rms")
    assert json.loads(_ask(door, host[0], key=host[1])[1])["Value"]["group"] == "hosts"
    forward = 'method=whoami&args=[]&extraCredentials=["/DC=test/CN=ada","lhcb_user"]'
    assert json.loads(_ask(door, host[0], key=host[1], data=forward)[1])["Value"]["username"] == "ada"
    assert (
        json.loads(_ask(door, door.proxy("bob", "lhcb_user"), data=forward)[1])["Value"]["username"] == "bob"
    )


def test_a_revoked_certificate_is_refused_soon_after_the_list_came(door: Door) -> None:
    revoked, good = door.proxy("bob", "lhcb_user"), door.proxy("ada", "lhcb_user")
    assert _ask(door, revoked)[0] == 200
    door.authority.revoke(door.directory / "bob.pem")
    door.authority.link_by_hash()
    deadline = time.monotonic() + PATIENCE
    while _ask(door, revoked)[0] != 0:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert _ask(door, good)[0] == 200


def test_clients_of_the_release_before_run_a_job(door: Door) -> None:
    old = GenuineClients.make(
        door.directory / "dirac-8",
        url=door.url,
        authorities=door.directory / "certificates",
        version=dirac_package.VERSION_8,
    )
    user, pilot = door.proxy("ada", "lhcb_user"), door.proxy("pia", "lhcb_pilot")
    [submitted] = old.call(user, ("JobManagerClient", "submitJob", JDL))
    job_id = submitted["Value"]
    door.wait(user, job_id, "Waiting")
    demand = {"Site": "LCG.A.org", "GridCE": "ce1", "CPUTime": "90000"}
    queues, match = old.call(
        pilot,
        ("MatcherClient", "getMatchingTaskQueues", demand),
        ("MatcherClient", "requestJob", RESOURCE),
    )
    assert [each["Jobs"] for each in queues["Value"].values()] == [1]
    assert (match["Value"]["JobID"], match["Value"]["DN"]) == (job_id, "/DC=test/CN=ada")
    beat, *others = old.call(
        pilot,
        ("JobStateUpdateClient", "sendHeartBeat", job_id, {"CPUConsumed": 1.0}, {"StandardOutput": "hello"}),
        ("JobStateUpdateClient", "setJobApplicationStatus", job_id, "event 7", "JobWrapper"),
        ("JobStateUpdateClient", "setJobParameters", job_id, [["CPU(s)", 5]]),
        ("JobStateUpdateClient", "setJobStatus", job_id, "Done", "Execution Complete", "JobWrapper"),
    )
    assert beat["Value"] == {}
    assert all(each["OK"] for each in others), others
    states, parameters, jdl = old.call(
        user,
        ("JobMonitoringClient", "getJobsStates", [job_id]),
        ("JobMonitoringClient", "getJobParameters", [job_id]),
        ("JobMonitoringClient", "getJobJDL", job_id, False),
    )
    assert states["Value"][str(job_id)] == {
        "Status": "Done",
        "MinorStatus": "Execution Complete",
        "ApplicationStatus": "event 7",
    }
    assert parameters["Value"][str(job_id)] == {
        "CPU(s)": "5",
        "CPUConsumed": "1.0",
        "StandardOutput": "hello",
    }
    assert 'Arguments = "hello world";' in jdl["Value"]


def test_the_portal_and_the_dashboards_of_dirac_go_on(door: Door, database_url: str) -> None:
    user = door.proxy("ada", "lhcb_user")
    [submitted] = door.clients.call(user, ("JobManagerClient", "submitJob", f"{JDL}; JobGroup = 7"))
    door.wait(user, submitted["Value"], "Waiting")
    portal, order = f"{door.url}/Monitoring/WebApp", [["JobID", "DESC"]]
    page, groups, stats, sites = door.clients.call(
        user,
        (portal, "getJobPageSummaryWeb", {"Status": ["Waiting"]}, order, 0, 25),
        (portal, "getJobGroups"),
        (portal, "getJobStats", "Status", {}),
        (portal, "getSiteSummaryWeb", {}, [], 0, 10),
    )
    [job] = [dict(zip(page["Value"]["ParameterNames"], row, strict=True)) for row in page["Value"]["Records"]]
    assert (job["JobID"], job["Status"], job["JobGroup"]) == (submitted["Value"], "Waiting", "7")
    assert (groups["Value"], stats["Value"]) == (["7"], {"Waiting": 1})
    assert len(sites["Value"]["Records"]) == 1

    environment = {**os.environ, "PILOTAGE_DATABASE_URL": database_url}
    written = subprocess.run(
        [str(PILOTAGE), "dirac-history"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    [record] = map(json.loads, written.splitlines())
    genuine = subprocess.run(
        [str(door.clients.python), "-c", _TYPE],
        env=door.clients.environment(user),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    known = json.loads(genuine.splitlines()[-1])
    assert record.keys() == {*known["keys"], *known["values"], "timestamp"}
    assert (record["Jobs"], record["JobGroup"], record["Status"]) == (1, "7", "Waiting")
    assert dirac_door.MAPPING["mappings"] == known["mapping"]


_TYPE = """
import json
from DIRAC.MonitoringSystem.Client.Types.WMSHistory import WMSHistory
t = WMSHistory()
print(json.dumps({"keys": t.keyFields, "values": t.monitoringFields, "mapping": t.mapping}))
"""
