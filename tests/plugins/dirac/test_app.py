"""The door without TLS: the certificates are put into the requests, as the server does."""

import asyncio
import json
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError
from starlette.types import Message, Receive, Scope, Send

from cs_config.options import bounds
from examples.servers.certificates import Authority, make_proxy
from pilotage.plugins.dirac import door_guard, jencode
from pilotage.plugins.dirac.app import SERVICES, create_door
from pilotage.plugins.dirac.configuration_server import ConfigurationFile
from pilotage.plugins.dirac.former import FormerServices
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import CheckedMethod, DiracCall
from pilotage.service import deadline
from pilotage.service.auth import rate_limits
from pilotage.service.queries import jobs as queries
from taskqueue.db import database
from taskqueue.leases import marks
from taskqueue.schema.tables import attempts
from tests.support import wait
from tests.support.service import running

CONFIG = """
Resources:
  Sites:
    LCG.A.org: {VO: [lhcb], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
Operations: {Defaults: {JobScheduling: {RescheduleDelays: [0]}}}
Registry:
  VO: {lhcb: {}, dune: {}}
  Users:
    ada: {DN: /DC=test/CN=ada}
    bob: {DN: /DC=test/CN=bob}
    pia: {DN: /DC=test/CN=pia}
    bea: {DN: /DC=test/CN=bea}
  Hosts: {rms: {DN: /DC=test/CN=rms, Properties: [JobAdministrator, TrustedHost]}}
  Groups:
    lhcb_user: {VO: lhcb, Users: [ada, bob], Properties: [NormalUser, JobSharing]}
    lhcb_own: {VO: lhcb, Users: [ada, bob], Properties: [NormalUser]}
    lhcb_pilot: {VO: lhcb, Users: [pia], Properties: [GenericPilot]}
    dune_user: {VO: dune, Users: [bea], Properties: [NormalUser]}
"""
#: A call of a service: the peer, the path, the form.
Ask = Callable[..., httpx.Response]
METHODS = [(path, method) for path, methods in SERVICES.items() for method in methods]


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority(directory)
    found = {"rms": (authority.sign("rms")[0].read_text(),)}
    groups = {
        "ada": "lhcb_user",
        "bob": "lhcb_user",
        "pia": "lhcb_pilot",
        "eve": "lhcb_user",
        "bea": "dune_user",
    }
    for name, group in groups.items():
        certificate, secret = authority.sign(name)
        for label in (name, f"{name}'s renewed proxy"):
            proxy = make_proxy(certificate, secret, directory / f"{label}.proxy", group=group)
            first = proxy.read_text().split("-----BEGIN RSA")[0]
            found[label] = (first, certificate.read_text())
    for name in ("ada", "bob"):
        proxy = make_proxy(
            directory / f"{name}.pem", directory / f"{name}.key", directory / "own", group="lhcb_own"
        )
        first = proxy.read_text().split("-----BEGIN RSA")[0]
        found[f"{name} alone"] = (first, (directory / f"{name}.pem").read_text())
    return found


def asking_async(
    door: FastAPI, chains: dict[str, tuple[str, ...]]
) -> Callable[..., Awaitable[httpx.Response]]:
    """Calls of services of a door in an event loop."""

    async def ask(
        peer: str | None,
        path: str,
        method: str = "",
        *arguments: object,
        body: bytes | None = None,
        address: str = "10.0.0.1",
        credentials: object = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        async def certified(scope: Scope, receive: Receive, send: Send) -> None:
            chain = chains[peer] if peer else ()
            await door({**scope, "extensions": {"tls": {"client_cert_chain": chain}}}, receive, send)

        transport = httpx.ASGITransport(certified, raise_app_exceptions=False, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://door") as client:
            fields = {"method": method, "args": json.dumps(arguments)}
            if credentials is not None:
                fields["extraCredentials"] = json.dumps(credentials)
            form = urlencode(fields).encode()
            return await client.post(path, content=form if body is None else body, headers=headers)

    return ask


def asking(door: FastAPI, chains: dict[str, tuple[str, ...]]) -> Ask:
    """Calls of services of a door."""
    ask = asking_async(door, chains)

    def ask_now(*arguments: Any, **more: Any) -> Any:
        async def wait() -> httpx.Response:
            return await ask(*arguments, **more)

        return asyncio.run(wait())

    return ask_now


@contextmanager
def opened_door(
    engine: Engine,
    directory: Path,
    former_services: FormerServices | None = None,
    text: str = CONFIG,
) -> Iterator[FastAPI]:
    with running(engine, directory, text) as service:
        served = directory / "cs.cfg"
        served.write_text("Systems\n{\n  A = 1\n}\n")
        yield create_door(service.parts, ConfigurationFile(served), former_services)


@contextmanager
def opened(engine: Engine, directory: Path, chains: dict[str, tuple[str, ...]]) -> Iterator[Ask]:
    with opened_door(engine, directory) as door:
        yield asking(door, chains)


@pytest.fixture
def ask(engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]]) -> Iterator[Ask]:
    with opened(engine, tmp_path, chains) as found:
        yield found


def value(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.json()["OK"], answer.text
    return answer.json()["Value"]


MANAGER, MONITORING, UPDATE, MATCHER = (
    f"/WorkloadManagement/{name}" for name in ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")
)
WEB = "/Monitoring/WebApp"
JDL = "Executable = /bin/ls; CPUTime = 1000"
RESOURCE = {"Site": "LCG.A.org", "CPUTime": 5000}


def run_job(ask: Ask) -> int:
    """A job of ada that a pilot has taken."""
    job_id: int = value(ask("ada", MANAGER, "submitJob", JDL))
    assert value(ask("pia", MATCHER, "requestJob", RESOURCE))["JobID"] == job_id
    return job_id


def status(ask: Ask, job_id: int) -> Any:
    return value(ask("ada", MONITORING, "getJobAttribute", job_id, "Status"))


def test_strangers_and_unknown_methods_are_refused(ask: Ask):
    assert ask(None, MANAGER, "ping").status_code == 401
    assert ask("eve", MANAGER, "ping").status_code == 401
    assert ask("ada", MANAGER, "ping").status_code == 200
    assert ask("ada", MANAGER, "__init__").status_code == 501
    assert ask("ada", "/WorkloadManagement/Nothing", "ping").status_code == 404
    assert ask("ada", MANAGER, body=b"\xff").json()["OK"] is False
    assert ask("ada", MANAGER, body=b"x" * (17 << 20)).status_code == 413
    assert ask("ada", MANAGER, body=b"x" * (1 << 20)).json()["OK"] is False
    assert ask("ada", MATCHER, body=b"x" * (1 << 20)).status_code == 413


def test_the_methods_that_the_page_for_operators_names_are_not_answered(ask: Ask):
    page = (Path(__file__).parents[3] / "docs" / "operator" / "dirac-reference.md").read_text()
    section = page.partition("## Methods that are not answered\n")[2].partition("\n## ")[0]
    [first] = re.findall(r"every method is answered but `(\w+)` of (\w+)", section)
    table = section.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ")[:2] for line in table.splitlines()]
    named = {(service, name) for service, text in rows for name in re.findall(r"`(\w+)`", text)}
    named.add(first[::-1])
    assert len(named) > 12
    for service, method in sorted(named):
        answer = ask("ada", f"/WorkloadManagement/{service}", method)
        assert answer.status_code == 501, (service, method, answer.text)


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_strangers_are_counted_and_cost_others_nothing(ask: Ask):
    assert 429 in {ask("eve", MANAGER, "ping").status_code for _ in range(150)}
    assert ask("ada", MANAGER, "ping").status_code == 200


def test_one_call_reads_and_sets_parameters_of_so_many_jobs(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    of_all = {str(number): ["a", "b"] for number in range(job_id, job_id + bounds.DIRAC_JOBS_SET + 1)}
    refused = ask("ada", UPDATE, "setJobsParameter", of_all).json()
    assert f"at most {bounds.DIRAC_JOBS_SET}" in refused["Message"]
    value(ask("pia", MATCHER, "requestJob", RESOURCE))
    value(ask("pia", UPDATE, "setJobParameter", job_id, "a", "b" * 11))
    assert value(ask("ada", MONITORING, "getJobParameters", [job_id])) == {str(job_id): {"a": "b" * 11}}
    monkeypatch.setattr(bounds, "DIRAC_READ", 10)
    assert (
        "allowed in one call are 10" in ask("ada", MONITORING, "getJobParameters", [job_id]).json()["Message"]
    )
    monkeypatch.setattr(bounds, "DIRAC_JOBS_READ", 0)
    assert "1 jobs are too many" in ask("ada", MONITORING, "getJobParameters", [job_id]).json()["Message"]


def test_of_very_many_statuses_in_one_report_the_last_ones_count(ask: Ask):
    job_id = run_job(ask)
    statuses = {
        f"2999-01-01 {number:03}": {"Status": "Running", "ApplicationStatus": f"event {number:03}"}
        for number in range(1000)
    }
    value(ask("pia", UPDATE, "setJobStatusBulk", job_id, statuses))
    seen = value(ask("ada", MONITORING, "getJobsStates", [job_id]))[str(job_id)]
    assert (seen["Status"], seen["ApplicationStatus"]) == ("Running", "event 999")
    assert len(value(ask("ada", MONITORING, "getJobLoggingInfo", job_id))) < 2 * bounds.DIRAC_NOTES


def test_a_call_that_is_not_confirmed_in_time_goes_on_and_is_not_to_be_repeated_elsewhere(
    engine: Engine,
    tmp_path: Path,
    chains: dict[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
):
    confirmed = threading.Event()
    submit = queries.submit

    def submit_late(*arguments: Any, **more: Any) -> Any:
        assert confirmed.wait(300)
        return submit(*arguments, **more)

    monkeypatch.setattr(queries, "submit", submit_late)

    async def submit_twice(ask: Callable[..., Awaitable[httpx.Response]]) -> tuple[Any, Any]:
        with monkeypatch.context() as short:
            short.setattr(deadline, "SECONDS", 0.1)
            unknown = await ask("ada", MANAGER, "submitJob", JDL)
        confirmed.set()
        while deadline._abandoned:
            await asyncio.sleep(0.01)
        return unknown, await ask("ada", MANAGER, "submitJob", JDL)

    with opened_door(engine, tmp_path) as door:
        unknown, second = asyncio.run(submit_twice(asking_async(door, chains)))
        assert (unknown.status_code, unknown.json()["OK"]) == (200, False)
        assert "look before you repeat it" in unknown.json()["Message"]
        ids = value(asking(door, chains)("ada", MONITORING, "getJobs"))
        assert [int(each) for each in ids] == [value(second) - 1, value(second)]


def test_a_submission_in_which_the_database_fails_is_not_sent_to_the_next_url(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
):
    submit = queries.submit

    def submit_and_fail(*arguments: Any, **more: Any) -> Any:
        submit(*arguments, **more)
        raise OperationalError("COMMIT", {}, Exception("the connection is lost"))

    monkeypatch.setattr(queries, "submit", submit_and_fail)
    answer = ask("ada", MANAGER, "submitJob", JDL)
    assert (answer.status_code, answer.json()["OK"]) == (200, False), "clients repeat after 503"
    assert "look whether the jobs are there" in answer.json()["Message"]
    assert len(value(ask("ada", MONITORING, "getJobs"))) == 1


def test_arguments_are_checked_by_their_types(ask: Ask):
    for arguments in ([], ["x"], [[1, "x"]], [None], [{"a": 1}], [0], [2**64], [1, 2, 3]):
        answer = ask("ada", MANAGER, "killJob", *arguments)
        assert (answer.status_code, answer.json()["OK"]) == (200, False), arguments
    [job_id] = [value(ask("ada", MANAGER, "submitJob", JDL))]
    assert value(ask("ada", MONITORING, "getJobsStatus", str(job_id))) == {str(job_id): {"Status": "Waiting"}}


def test_lists_have_as_many_ids_as_a_submission_has_jobs(ask: Ask):
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    ids = list(range(1, bounds.SUBMITTED_JOBS + 1))
    assert list(value(ask("ada", MONITORING, "getJobsStatus", ids))) == [str(job_id)]
    assert value(ask("ada", MANAGER, "rescheduleJob", ids)) == [job_id]
    assert value(ask("ada", MANAGER, "killJob", ids)) == [job_id]
    assert ask("ada", MANAGER, "killJob", [*ids, 10_001]).json()["OK"] is False


def test_a_change_of_own_jobs_is_audited_with_the_role_of_a_user(ask: Ask, caplog: pytest.LogCaptureFixture):
    ids = [value(ask(owner, MANAGER, "submitJob", JDL)) for owner in ("ada", "bob")]
    with caplog.at_level(logging.INFO, logger="pilotage.audit"):
        assert value(ask("ada", MANAGER, "killJob", ids)) == ids, "one of each by JobSharing"
        assert value(ask("rms", MANAGER, "deleteJob", ids)) == ids
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "pilotage.audit"]
    assert [(each["subject"], each["role"], each["jobs"]) for each in lines] == [
        ("user:lhcb::ada", "user", 1),
        ("vo_admin:lhcb::ada", "vo_admin", 1),
        ("vo_admin:dune,lhcb::rms", "vo_admin", 2),
    ]


def test_the_input_data_of_a_job_and_of_several_are_read(ask: Ask):
    names = ["/lhcb/data/1.dst", "/lhcb/data/2.dst"]
    with_data = JDL + '; InputData = {"LFN:/lhcb/data/1.dst", "/lhcb/data/2.dst"}'
    one, other = (value(ask("ada", MANAGER, "submitJob", text)) for text in (with_data, JDL))
    for job_id in (one, str(one)):
        assert value(ask("ada", MONITORING, "getInputData", job_id)) == names
    found = value(ask("ada", MONITORING, "getInputData", [one, str(other), 99]))
    assert found == {str(one): names, str(other): [], "99": []}
    assert value(ask("bea", MONITORING, "getInputData", [one])) == {str(one): []}
    assert "does not exist" in ask("bea", MONITORING, "getInputData", one).json()["Message"]
    assert not ask("ada", MONITORING, "getInputData", list(range(1, 2_000))).json()["OK"]


def test_wrong_values_of_filters_are_named(ask: Ask):
    for wanted in ({"Owner": 5}, {"Site": [1]}, {"Owner": {"a": 1}}):
        answer = ask("ada", MONITORING, "getJobs", wanted)
        assert (answer.status_code, answer.json()["OK"]) == (200, False), wanted


def test_jobs_are_found_by_what_is_shown_of_them_and_by_any_of_several_values(ask: Ask):
    one, two, bare = (
        value(ask("ada", MANAGER, "submitJob", f"{JDL}{more}"))
        for more in ("; JobName = one; JobGroup = g", "; JobName = two; JobType = Merge", "")
    )
    for wanted, found in (
        ({"JobName": ["one", "two"]}, [one, two]),
        ({"JobName": ["one", "two"], "JobGroup": "g"}, [one]),
        ({"JobName": "Unknown"}, [bare]),
        ({"JobName": ["Unknown", "one"]}, [one, bare]),
        ({"ApplicationStatus": "Unknown"}, [one, two, bare]),
        ({"JobID": [two, str(bare), 99]}, [two, bare]),
        ({"Status": ["Staging", "Waiting"]}, [one, two, bare]),
        ({"Status": "Staging"}, []),
        ({"OwnerGroup": ["lhcb_user", "x"]}, [one, two, bare]),
    ):
        assert value(ask("ada", MONITORING, "getJobs", wanted)) == [str(each) for each in found], wanted
        page = value(ask("ada", WEB, "getJobPageSummaryWeb", wanted, [], 0, 10))
        assert page["TotalRecords"] == len(found), wanted
    shown = value(ask("ada", MONITORING, "getJobAttributes", two))
    for name in ("JobName", "JobType", "ApplicationStatus", "MinorStatus", "Site"):
        assert str(two) in value(ask("ada", MONITORING, "getJobs", {name: shown[name]})), name


def test_attempts_by_the_door_have_times_of_their_own(ask: Ask, engine: Engine):
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    resource = {"Site": "LCG.A.org", "GridCE": "ce1", "CEQueue": "long", "CPUTime": "5000", "Tag": ""}
    assert value(ask("pia", MATCHER, "requestJob", resource))["JobID"] == job_id
    with engine.connect() as conn:
        attempt = conn.execute(select(attempts)).one()
    assert attempt.holder == "dirac:lhcb_pilot:/DC=test/CN=pia"
    assert (attempt.lease_expires_at - attempt.opened_at).total_seconds() == 7200


def test_a_completed_job_is_ended_by_the_host_that_carries_out_its_requests(ask: Ask):
    job_id = run_job(ask)
    value(ask("pia", UPDATE, "setJobStatus", job_id, "Completed", "Pending Requests", "JobWrapper"))
    assert value(ask("ada", MONITORING, "getJobAttribute", job_id, "Status")) == "Completed"
    value(ask("rms", UPDATE, "setJobStatus", job_id, "Done", "Requests done", "RMS"))
    assert (
        value(ask("ada", MONITORING, "getJobsStates", job_id))[str(job_id)]["MinorStatus"] == "Requests done"
    )


def test_a_ghost_with_a_renewed_proxy_does_not_report_on_the_open_attempt(ask: Ask):
    job_id = run_job(ask)
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "Application", address="10.0.0.1"))
    value(ask("ada", MANAGER, "rescheduleJob", job_id, address="10.0.0.9"))
    value(ask("pia", MATCHER, "requestJob", RESOURCE, address="10.0.0.2"))
    renewed = "ada's renewed proxy"
    value(ask(renewed, UPDATE, "setJobStatus", job_id, "Failed", "of the ghost", address="10.0.0.1"))
    ask(renewed, UPDATE, "setJobParameter", job_id, "Ghost", "yes", address="10.0.0.1")
    assert value(ask(renewed, UPDATE, "sendHeartBeat", job_id, {}, {}, address="10.0.0.1")) == {"Kill": ""}
    assert status(ask, job_id) == "Matched"
    assert value(ask("ada", MONITORING, "getJobParameters", [job_id])) == {str(job_id): {}}
    assert value(ask(renewed, UPDATE, "sendHeartBeat", job_id, {}, {}, address="10.0.0.2")) == {}
    assert status(ask, job_id) == "Running"


@pytest.mark.parametrize("reference", [None, "ce1/1"])
@pytest.mark.parametrize("end", ["Rescheduled", "Failed"])
def test_a_jobagent_that_gets_a_job_again_reports_on_it_with_the_proxy_that_it_kept(
    ask: Ask, end: str, reference: str | None
):
    resource = {**RESOURCE, "PilotReference": reference}
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    value(ask("pia", MATCHER, "requestJob", resource))
    value(ask("ada", UPDATE, "setJobStatus", job_id, end, "no disk", "JobWrapper"))
    assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {})) == (
        {"Kill": ""} if end[0] == "R" else {}
    )
    value(ask("ada", MANAGER, "rescheduleJob", job_id))
    assert value(ask("pia", MATCHER, "requestJob", resource))["JobID"] == job_id
    assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {})) == {}
    assert status(ask, job_id) == "Running"
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Done", "Execution Complete", "JobWrapper"))
    assert status(ask, job_id) == "Done"


@pytest.mark.parametrize("references", [(None, None), ("ce1/1", "ce1/2")])
def test_a_jobagent_whose_job_another_one_with_its_proxy_and_address_has_is_killed(
    ask: Ask, references: tuple[str | None, str | None]
):
    first, second = ({**RESOURCE, "PilotReference": each} for each in references)
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    value(ask("pia", MATCHER, "requestJob", first))
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "Application", "JobWrapper"))
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Rescheduled", "no disk", "JobWrapper"))
    value(ask("ada", MANAGER, "rescheduleJob", job_id))
    value(ask("pia", MATCHER, "requestJob", second))
    if references[0]:
        assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {})) == {"Kill": ""}
        assert status(ask, job_id) == "Matched"
    other = "ada's renewed proxy"
    value(ask(other, UPDATE, "setJobStatus", job_id, "Running", "Application", "JobWrapper"))
    assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {})) == {"Kill": ""}
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Failed", "of the ghost", "JobWrapper"))
    assert status(ask, job_id) == "Running"
    assert value(ask(other, UPDATE, "sendHeartBeat", job_id, {}, {})) == {}


def test_reports_that_hosts_send_on_change_no_open_attempt(ask: Ask):
    job_id = run_job(ask)
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running"))
    late = {"2100-11-20 10:00:00": {"Status": "Failed"}}
    for credentials in (None, ["/DC=test/CN=ada", "lhcb_user"]):
        value(ask("rms", UPDATE, "setJobStatusBulk", job_id, late, credentials=credentials))
    assert status(ask, job_id) == "Running"
    value(ask("ada", UPDATE, "setJobStatusBulk", job_id, {"2000-01-01 10:00:00": {"Status": "Failed"}}))
    assert status(ask, job_id) == "Running"
    assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {})) == {}


def test_the_second_call_of_a_rescheduling_does_not_change_the_next_attempt(ask: Ask):
    job_id = run_job(ask)
    value(ask("pia", UPDATE, "setJobStatus", job_id, "Rescheduled", "no proxy"))
    assert value(ask("pia", UPDATE, "sendHeartBeat", job_id, {}, {})) == {"Kill": ""}
    value(ask("pia", MATCHER, "requestJob", RESOURCE))
    assert value(ask("pia", MANAGER, "rescheduleJob", job_id)) == [job_id]
    assert status(ask, job_id) == "Matched"


def test_a_rule_of_the_vo_lets_a_job_run_again_that_a_jobwrapper_reports_as_failed(
    engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]]
):
    rule = 'JobDescription: {Retry: {default: "time limit: CPUTime x 2"}}'
    text = CONFIG.replace("{Defaults: {", f"{{Defaults: {{{rule}, ")
    with opened_door(engine, tmp_path, text=text) as door:
        ask = asking(door, chains)
        job_id = value(ask("ada", MANAGER, "submitJob", JDL))
        for asked, after in (("1000", "Waiting"), ("2000", "Failed")):
            assert asked in value(ask("pia", MATCHER, "requestJob", RESOURCE))["JDL"]
            value(ask("pia", UPDATE, "setJobStatus", job_id, "Running", "Application", "JobWrapper"))
            # What the wrapper sends after the end changes nothing.
            for end in ("Failed", "Failed", "Done"):
                minor = "Job has reached the CPU limit of the queue"
                value(ask("pia", UPDATE, "setJobStatus", job_id, end, minor, "JobWrapper"))
                assert status(ask, job_id) == after


def test_long_parameters_are_cut_and_not_refused(ask: Ask):
    job_id = run_job(ask)
    value(ask("pia", UPDATE, "setJobParameters", job_id, [["Log", "x" * 50_000], ["", "y"]]))
    found = value(ask("ada", MONITORING, "getJobParameters", job_id, "Log"))
    assert len(found[str(job_id)]["Log"]) == bounds.PARAMETER_VALUE


def test_a_heartbeat_with_much_output_is_cut_and_not_refused(ask: Ask):
    job_id = run_job(ask)
    lines = "\r".join("\u2588" * 100 + f"{number}%" for number in range(700))  # of a progress bar
    assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {"StandardOutput": lines})) == {}
    found = value(ask("ada", MONITORING, "getJobParameters", job_id))[str(job_id)]
    assert lines.endswith(found["StandardOutput"])
    assert len(found["StandardOutput"]) == 16_384
    assert ask("ada", UPDATE, body=b"x" * (3 << 20)).status_code == 413


def test_the_numbers_of_the_latest_heartbeat_are_parameters(ask: Ask):
    job_id = run_job(ask)
    assert value(ask("ada", MONITORING, "getJobHeartBeatData", job_id)) == []
    numbers = {"CPUConsumed": 7, "LoadAverage": 1.26, "MemoryUsed": "much", "Other": 5, "Vsize": True}
    for cpu in (7, 12.5):
        sent = {**numbers, "CPUConsumed": cpu}
        assert value(ask("ada", UPDATE, "sendHeartBeat", job_id, sent, {"StandardOutput": "x"})) == {}
    found = value(ask("ada", MONITORING, "getJobHeartBeatData", job_id))
    assert [(name, number) for name, number, _ in found] == [("CPUConsumed", "12.5"), ("LoadAverage", "1.3")]
    shown = value(ask("ada", MONITORING, "getJobParameters", job_id))[str(job_id)]
    assert shown == {"CPUConsumed": "12.5", "LoadAverage": "1.3", "StandardOutput": "x"}
    assert "does not exist" in ask("bea", MONITORING, "getJobHeartBeatData", job_id).json()["Message"]


def test_parameters_that_fit_are_kept(ask: Ask):
    job_id = run_job(ask)
    value(ask("pia", UPDATE, "setJobParameters", job_id, [[f"p{number}", "v"] for number in range(99)]))
    value(ask("pia", UPDATE, "setJobParameters", job_id, [["Memory", "5"], ["CPU", "6"], ["p1", "w"]]))
    found = value(ask("ada", MONITORING, "getJobParameters", job_id))[str(job_id)]
    assert (found["Memory"], found["p1"], "CPU" in found) == ("5", "w", False)


def test_a_claim_that_cannot_be_handed_over_is_given_back(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    with monkeypatch.context() as broken:
        broken.setattr("taskqueue.leases.marks.store_mark", lambda *_: 1 / 0)
        assert ask("pia", MATCHER, "requestJob", RESOURCE).status_code == 500
    wait.until(lambda: status(ask, job_id) == "Waiting")


def test_a_job_for_which_its_agent_did_not_wait_is_given_back(
    engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
):
    answered, store_mark = threading.Event(), marks.store_mark

    def store_late(*arguments: Any) -> None:
        assert answered.wait(300)
        store_mark(*arguments)

    async def request(ask: Callable[..., Awaitable[httpx.Response]]) -> dict[str, Any]:
        monkeypatch.setattr(marks, "store_mark", store_late)
        with monkeypatch.context() as short:
            short.setattr(deadline, "SECONDS", 0.5)
            answer = await ask("pia", MATCHER, "requestJob", RESOURCE)
        answered.set()
        while deadline._abandoned:
            await asyncio.sleep(0.01)
        return dict(answer.json())

    with opened_door(engine, tmp_path) as door:
        ask = asking(door, chains)
        job_id = value(ask("ada", MANAGER, "submitJob", JDL))
        answer = asyncio.run(request(asking_async(door, chains)))
        assert (answer["OK"], "outcome is unknown" in answer["Message"]) == (False, True)
        wait.until(lambda: status(ask, job_id) == "Waiting")
        assert value(ask("pia", MATCHER, "requestJob", RESOURCE))["JobID"] == job_id


def test_a_pilot_reports_only_on_its_own_attempts(ask: Ask):
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    answer = ask("pia", UPDATE, "setJobStatus", job_id, "Failed", "", "JobAgent").json()
    assert (answer["OK"], answer["Message"]) == (False, f"job {job_id} does not exist")
    assert value(ask("pia", MONITORING, "getJobsStatus", [job_id])) == {}
    assert ask("pia", MANAGER, "submitJob", JDL).json()["Errno"] == 1503


@pytest.mark.parametrize("end", ["Failed", "Done"])
def test_a_generic_pilot_sees_the_end_of_the_jobs_that_it_took(ask: Ask, end: str):
    job_id, other = (value(ask("ada", MANAGER, "submitJob", JDL)) for _ in range(2))
    assert value(ask("pia", MATCHER, "requestJob", RESOURCE))["JobID"] == job_id
    running = {"Status": "Running", "Site": "LCG.A.org"}
    assert value(ask("pia", MONITORING, "getJobs", running)) == []
    value(ask("pia", UPDATE, "setJobStatus", job_id, "Running", "Application", "JobWrapper"))
    assert value(ask("pia", MONITORING, "getJobs", running)) == [str(job_id)]
    value(ask("pia", UPDATE, "setJobStatus", job_id, end, "", "JobWrapper"))
    # Also by another process with this proxy.
    found = value(ask("pia", MONITORING, "getJobsStatus", [job_id, other], address="10.0.0.2"))
    assert found == {str(job_id): {"Status": end}}
    assert value(ask("pia", MONITORING, "getJobs")) == [str(job_id)]
    assert value(ask("pia", MONITORING, "getJobs", {"Owner": "bob"})) == []
    # Neither another user of the VO nor another VO sees it.
    for stranger in ("bob alone", "bea"):
        assert value(ask(stranger, MONITORING, "getJobsStatus", [job_id])) == {}


def test_a_generic_pilot_sees_that_its_job_was_rescheduled(ask: Ask):
    job_id = run_job(ask)
    value(ask("pia", UPDATE, "setJobStatus", job_id, "Running", "Application", "JobWrapper"))
    value(ask("ada", MANAGER, "rescheduleJob", job_id))
    found = value(ask("pia", MONITORING, "getJobsStatus", [job_id]))
    assert found == {str(job_id): {"Status": status(ask, job_id)}}


def test_the_id_of_a_job_stands_for_its_placeholder(ask: Ask):
    outputs = 'StdOutput = "out_%j"; OutputSandbox = {"out_%j"}; OutputData = {"LFN:/lhcb/%j.root"}'
    names = "JobName = run_%j; JobGroup = group_%j; TaskName = task_%j"
    text = f"{JDL}; Parameters = {{a, b_%j}}; Arguments = --id %j -f %s; {outputs}; {names}"
    ids = value(ask("ada", MANAGER, "submitJob", text))
    for job_id, parameter in zip(ids, ("a", f"b_{ids[1]}"), strict=True):
        shown = value(ask("ada", MONITORING, "getJobJDL", job_id))
        taken = value(ask("pia", MATCHER, "requestJob", RESOURCE))
        assert taken["JobID"] == job_id
        for written in (shown, taken["JDL"]):
            assert "%j" not in written
            assert f'    Arguments = "--id {job_id} -f {parameter}";' in written
            assert f'    OutputData = {{"LFN:/lhcb/{job_id}.root"}};' in written
            assert f'    TaskName = "task_{job_id}";' in written
        listed = value(ask("ada", MONITORING, "getJobAttributes", job_id, ["JobName", "JobGroup"]))
        assert listed == {"JobName": f"run_{job_id}", "JobGroup": f"group_{job_id}"}
    assert value(ask("ada", MONITORING, "getJobs", {"JobName": f"run_{ids[0]}"})) == [str(ids[0])]


def test_pilots_of_a_group_with_job_sharing_take_its_jobs_and_others_only_their_own(ask: Ask):
    shared, own = (value(ask(peer, MANAGER, "submitJob", JDL)) for peer in ("ada", "ada alone"))
    assert ask("bob alone", MATCHER, "requestJob", RESOURCE).json()["Errno"] == 1510
    assert value(ask("bob", MATCHER, "requestJob", RESOURCE))["JobID"] == shared
    assert ask("bob", MATCHER, "requestJob", RESOURCE).json()["Errno"] == 1510
    value(ask("bob", UPDATE, "setJobStatus", shared, "Running", "Application", "JobWrapper"))
    assert value(ask("bob", UPDATE, "sendHeartBeat", shared, {}, {})) == {}
    value(ask("bob", UPDATE, "setJobStatus", shared, "Done", "Execution Complete", "JobWrapper"))
    assert status(ask, shared) == "Done"
    assert value(ask("ada alone", MATCHER, "requestJob", RESOURCE))["JobID"] == own
    page = value(ask("bob", WEB, "getJobPageSummaryWeb", {}, [], 0, 10))
    assert [row[0] for row in page["Records"]] == [shared]


def test_active_task_queues_are_those_whose_jobs_the_peer_may_see(ask: Ask):
    for peer in ("ada", "ada", "bob alone", "bea"):
        value(ask(peer, MANAGER, "submitJob", JDL))

    def list_queues(peer: str) -> list[tuple[str, str, int]]:
        found = value(ask(peer, MATCHER, "getActiveTaskQueues")).values()
        return sorted((each["VO"], each["OwnerGroup"], each["Jobs"]) for each in found)

    shared, own, other = ("lhcb", "lhcb_user", 2), ("lhcb", "lhcb_own", 1), ("dune", "dune_user", 1)
    assert list_queues("ada") == [shared]
    assert list_queues("bob") == [own, shared]  # his own ones, and those of the group that shares
    assert list_queues("ada alone") == [shared]  # her own ones, with whatever group
    assert list_queues("pia") == [own, shared]
    assert list_queues("bea") == [other]
    assert list_queues("rms") == [other, own, shared]
    value(ask("pia", MATCHER, "requestJob", RESOURCE))
    assert sum(jobs for _, _, jobs in list_queues("pia")) == 2


NAMES = st.text(max_size=10) | st.sampled_from(
    ["Owner", "Site", "Status", "VO", "JobName", "CPUTime", "GridCE", "CEQueue", "Tag", "MaxRAM", "__dCls"]
)
ARGUMENTS = st.lists(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
        max_leaves=8,
    ),
    max_size=5,
)


FIELDS = st.sampled_from(["method", "args", "extraCredentials", "clientVO", "rawContent", "", "x"])
#: Texts that are JEncode in part.
CODED = st.sampled_from(
    [
        *(
            "[]",
            "[1]",
            "[[1, 2]]",
            '["a", {}]',
            "[",
            "[nan]",
            '[{"__dCls": "dt", "obj": "2026-11-22 12:00:00"}]',
        ),
        *('[{"__dCls": "b64", "obj": "YQ=="}]', '[{"__dCls": "Popen", "__dMod": "subprocess"}]', '"hosts"'),
        *('["/DC=test/CN=ada", "lhcb_user"]', '["/DC=test/CN=rms", "hosts"]', "[null, null]", "[" * 70),
    ]
)
FORMS = st.lists(
    st.tuples(FIELDS, CODED | st.sampled_from([name for _, name in METHODS]) | st.text(max_size=30)),
    max_size=6,
).map(lambda fields: urlencode(fields, errors="replace").encode())
BODIES = FORMS | st.binary(max_size=60) | st.tuples(FORMS, st.binary(max_size=10)).map(b"&".join)


def test_no_form_causes_an_error_of_ours(
    sqlite_template: Path, tmp_path: Path, chains: dict[str, tuple[str, ...]], sqlite_url: str
):
    engine = database.connect(sqlite_url)
    with opened(engine, tmp_path, chains) as ask:
        job_id = value(ask("ada", MANAGER, "submitJob", JDL))

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            st.sampled_from(METHODS),
            st.sampled_from(["ada", "pia", "rms"]),
            ARGUMENTS | ARGUMENTS.map(lambda given: [job_id, *given]),
        )
        def check(where: tuple[str, str], peer: str, arguments: list[object]) -> None:
            answer = ask(peer, *where, *arguments)
            assert answer.status_code < 500 or answer.status_code in (501, 503), answer.text

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(sorted(SERVICES)), st.sampled_from(["ada", "rms", None]), BODIES)
        def check_bodies(path: str, peer: str | None, body: bytes) -> None:
            answer = ask(peer, path, body=body)
            assert answer.status_code < 500 or answer.status_code in (501, 503), answer.text

        check()
        check_bodies()
    engine.dispose()


def test_the_portal_gets_the_values_of_the_most_jobs(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "DIRAC_VALUES", 1)
    for group in ("a", "b", "b", "c"):
        value(ask("ada", MANAGER, "submitJob", f"{JDL}; JobGroup = {group}"))
    assert value(ask("ada", WEB, "getJobGroups")) == ["b", "and 2 more"]
    assert value(ask("ada", WEB, "getJobStats", "JobGroup", {})) == {"b": 2, "and 2 more": 2}
    more = {"JobGroup": "and 2 more", "Status": "and 2 more"}
    counters = value(ask("ada", WEB, "getJobsCounters", ["JobGroup", "Status"], {}))
    assert counters == [[{"JobGroup": "b", "Status": "Waiting"}, 2], [more, 2]]


def test_calls_of_one_vo_from_many_addresses_leave_threads_to_others(
    engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(door_guard, "CALLS", replace(door_guard.CALLS, of_vo=1))
    begun, may_end = list[str](), threading.Event()

    def work(call: DiracCall) -> Result:
        begun.append(call.peer.vo)
        assert call.peer.vo == "dune" or may_end.wait(300)
        return jencode.ok()

    monkeypatch.setitem(SERVICES[MONITORING], "work", CheckedMethod(work))  # type: ignore[arg-type]

    async def call() -> None:
        ask = asking_async(door, chains)
        of_lhcb = [
            asyncio.create_task(ask(peer, MONITORING, "work", address=address))
            for peer, address in (("ada", "10.0.0.1"), ("ada", "10.0.0.2"), ("bob", "10.0.0.3"))
        ]
        while not begun:
            await asyncio.sleep(0.01)
        value(await ask("bea", MONITORING, "work"))
        assert begun == ["lhcb", "dune"]
        may_end.set()
        for each in of_lhcb:
            value(await each)
        assert sorted(begun) == ["dune", "lhcb", "lhcb", "lhcb"]

    with opened_door(engine, tmp_path) as door:
        asyncio.run(call())


def test_answers_that_are_not_read_count_for_the_peer_and_its_vo(
    engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rate_limits, "ANSWERS", replace(rate_limits.ANSWERS, of_one=1_000, of_vo=3_000))
    result = jencode.encode(jencode.ok("x" * 2_000))
    monkeypatch.setitem(
        SERVICES[MONITORING],
        "long",
        CheckedMethod(lambda _: jencode.ok("x" * 2_000)),  # type: ignore[arg-type]
    )

    async def call() -> None:
        held, sending, may_end = door.state.parts.answers.under_way, list[Scope](), asyncio.Event()

        async def unread(scope: Scope, receive: Receive, send: Send) -> None:
            async def wait(message: Message) -> None:
                if message["type"] == "http.response.body":
                    sending.append(scope)
                    await may_end.wait()
                await send(message)

            await door(scope, receive, wait)

        ask, leave_unread = asking_async(door, chains), asking_async(unread, chains)  # type: ignore[arg-type]
        unread_answers = [asyncio.create_task(leave_unread("ada", MONITORING, "long"))]
        while not sending:
            await asyncio.sleep(0.01)
        assert held["subject", "/DC=test/CN=ada"] == held["VO", "lhcb"] == len(result)
        assert (await ask("ada", MONITORING, "ping")).status_code == 429
        value(await ask("bob", MONITORING, "ping"))
        unread_answers.append(asyncio.create_task(leave_unread("bob", MONITORING, "long")))
        while len(sending) < 2:
            await asyncio.sleep(0.01)
        assert (await ask("pia", MONITORING, "ping")).status_code == 429
        value(await ask("bea", MONITORING, "ping"))
        may_end.set()
        for each in unread_answers:
            value(await each)
        assert not held
        value(await ask("ada", MONITORING, "ping"))

    with opened_door(engine, tmp_path) as door:
        asyncio.run(call())


def test_conditions_of_the_portal_have_a_bounded_number_of_values_and_each_attribute_once(ask: Ask):
    value(ask("ada", MANAGER, "submitJob", JDL))
    for many in ({"JobID": list(range(1, 1002))}, {"JobName": [f"n{n}" for n in range(1001)]}):
        answer = ask("ada", WEB, "getJobPageSummaryWeb", many, [], 0, 25).json()
        assert "1001 values, allowed are 1000" in answer["Message"]
    twice = ask("ada", WEB, "getJobsCounters", ["Owner"] * 2000).json()
    assert twice["Message"] == "attributes: names a column twice"
    beyond = {"FromDate": "0001-01-01T00:00:00+14:00", "ToDate": "9999-12-31T23:59:59-14:00"}
    assert value(ask("ada", WEB, "getJobPageSummaryWeb", beyond, [], 0, 25))["TotalRecords"] == 1


def test_the_portal_reads_pages_numbers_and_values_of_the_jobs_that_its_user_may_see(ask: Ask):
    grouped = f"{JDL}; JobGroup = 7; JobName = n1"
    ids = [value(ask("ada", MANAGER, "submitJob", each)) for each in (JDL, grouped, grouped)]
    [taken] = [value(ask("pia", MATCHER, "requestJob", RESOURCE))["JobID"]]
    value(ask("pia", UPDATE, "setJobStatus", taken, "Running", "Application", "JobWrapper"))
    value(ask("pia", UPDATE, "setJobApplicationStatus", taken, "event 7"))

    page = value(ask("ada", WEB, "getJobPageSummaryWeb", {}, [["JobID", "ASC"]], 0, 2))
    assert (page["TotalRecords"], page["Extras"]) == (3, {"Running": 1, "Waiting": 2})
    rows = [dict(zip(page["ParameterNames"], row, strict=True)) for row in page["Records"]]
    assert [row["JobID"] for row in rows] == sorted(ids)[:2]
    assert rows[0].keys() >= {"Status", "MinorStatus", "Site", "JobName", "LastUpdateTime", "LastSignOfLife"}
    rest = value(ask("ada", WEB, "getJobPageSummaryWeb", {}, [["JobID", "ASC"]], 2, 2))
    assert [row[0] for row in rest["Records"]] == sorted(ids)[2:]
    beyond = ask("ada", WEB, "getJobPageSummaryWeb", {}, [["JobID", "ASC"]], 3, 2).json()
    assert beyond["Message"] == "Item number out of range"

    def select(**selection: object) -> Any:
        page = value(ask("ada", WEB, "getJobPageSummaryWeb", selection, [], 0, 25))
        return sorted(row[0] for row in page.get("Records", []))

    assert select(JobGroup=["7", "8"]) == sorted(ids)[1:]
    assert select(Status=["Running", "Staging"]) == [taken]
    assert select(JobID=[str(taken), 10**6]) == [taken]
    assert select(Owner=["ada", "bea"], OwnerGroup="lhcb_user", JobType=["User"]) == sorted(ids)
    assert select(Owner=["bea"]) == select(OwnerGroup="dune_user") == select(VO="dune") == []
    assert select(FromDate="2000-01-01", ToDate="") == sorted(ids)
    assert select(LastUpdate="2999-01-01") == select(ToDate="2000-01-01 00:00:00") == []

    assert value(ask("ada", WEB, "getJobStats", "Status", {})) == {"Running": 1, "Waiting": 2}
    assert value(ask("ada", WEB, "getJobStats", "JobGroup", {"Status": "Waiting"})).keys() <= {
        "7",
        "00000000",
    }
    counters = value(ask("ada", WEB, "getJobsCounters", ["Status", "Site"], {"JobID": [taken]}))
    assert counters == [[{"Status": "Running", "Site": "LCG.A.org"}, 1]]
    assert value(ask("ada", WEB, "getJobsCounters", ["Status"], {"FromDate": "2999-01-01"})) == []
    for method, found in {
        "getApplicationStates": ["Unknown", "event 7"],
        "getJobTypes": ["User"],
        "getOwners": ["ada"],
        "getOwnerGroup": ["lhcb_user"],
        "getStates": ["Running", "Waiting"],
    }.items():
        assert value(ask("ada", WEB, method)) == found, method
    assert "LCG.A.org" in value(ask("ada", WEB, "getSites", {}, None, None))
    assert {"Application"} <= set(value(ask("ada", WEB, "getMinorStates")))

    sites = value(ask("ada", WEB, "getSiteSummaryWeb", {"Site": "LCG.A.org"}, [["Running", "DESC"]], 0, 10))
    [site] = [dict(zip(sites["ParameterNames"], row, strict=True)) for row in sites["Records"]]
    assert (site["Running"], site["MaskStatus"], site["Status"], site["Tier"]) == (1, "Active", "Idle", 2)
    assert value(ask("ada", WEB, "getSiteSummarySelectors"))["Site"] == ["LCG.A.org"]

    for peer in ("bea", "pia"):
        page = value(ask(peer, WEB, "getJobPageSummaryWeb", {}, [["JobID", "DESC"]], 0, 25))
        assert page == {"TotalRecords": 0}
        assert value(ask(peer, WEB, "getOwners")) == []
    for wrong in ({"Nonsense": 1}, {"JobID": ["x"]}, {"FromDate": "yesterday"}):
        assert not ask("ada", WEB, "getJobPageSummaryWeb", wrong, [], 0, 25).json()["OK"]
    assert ask("ada", WEB, "getPilotMonitorWeb", {}, [], 0, 25).status_code == 501


def test_the_log_names_the_part_of_dirac_that_reported(ask: Ask):
    job_id = run_job(ask)
    for status, minor, source in (
        ("Running", "Job Initialization", "JobWrapper"),
        ("Running", "Application", "Watchdog"),
        ("Running", "Input Data Resolution", "Unknown"),
        ("Failed", "CPU limit", "JobWrapper"),
    ):
        value(ask("ada", UPDATE, "setJobStatus", job_id, status, minor, source))
    lines = [(each[1], each[-1]) for each in value(ask("ada", MONITORING, "getJobLoggingInfo", job_id))]
    for line in (
        ("Application", "Watchdog"),
        ("Input Data Resolution", "Pilot"),
        ("CPU limit", "JobWrapper"),
    ):
        assert line in lines
    assert {source for _, source in lines} >= {"JobManager", "JobWrapper", "Watchdog"}


def test_a_job_that_waits_again_has_not_started(ask: Ask):
    job_id = run_job(ask)
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "", "JobWrapper"))
    started = value(ask("ada", MONITORING, "getJobAttribute", job_id, "StartExecTime"))
    assert "20" in str(started)
    value(ask("ada", MANAGER, "rescheduleJob", [job_id]))
    assert value(ask("ada", MONITORING, "getJobAttribute", job_id, "StartExecTime")) in (None, "None")
