"""The clients of DIRAC that report by the routes of DiracX, with its tokens."""

import base64
import json
import ssl
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from examples.servers.certificates import Authority, make_proxy
from tests.acceptance.test_dirac_door import JDL, PATIENCE, RESOURCE, RESOURCES
from tests.acceptance.test_dirac_move import opened
from tests.support.dirac.clients import GenuineClients
from tests.support.servers.token_issuer import TokenIssuer

pytestmark = [pytest.mark.debian("dirac"), pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class DiracX:
    """A door, an issuer in front of it, and clients that report by DiracX."""

    url: str
    issuer: TokenIssuer
    directory: Path
    authority: Authority
    clients: GenuineClients
    future: GenuineClients

    def token(self, user: str = "ada", **changed: object) -> str:
        """An access token of DiracX."""
        claims = {
            "vo": "lhcb",
            "dirac_group": "lhcb_user",
            "dirac_properties": ["NormalUser"],
            "preferred_username": user,
            "dirac_policies": {},
            **dict.fromkeys(("scope", "wlcg.ver", "nbf", "aud")),
        }
        return self.issuer.token(f"lhcb:{user}", "", **{**claims, **changed})

    def proxy(self, name: str, group: str, token: str = "") -> Path:
        """A proxy, with a token in it."""
        certificate, secret = (self.directory / f"{name}{end}" for end in (".pem", ".key"))
        if not certificate.exists():
            self.authority.sign(name)
        file = make_proxy(certificate, secret, self.directory / f"{name}-{bool(token)}.proxy", group=group)
        if token:
            refresh = self.issuer.token("", "", legacy_exchange=True)
            content = {"access_token": token, "expires_on": int(time.time()) + 3000, "refresh_token": refresh}
            text = textwrap.fill(base64.b64encode(json.dumps(content).encode()).decode(), 64)
            with file.open("a") as out:
                out.write(f"-----BEGIN DIRACX-----\n{text}\n-----END DIRACX-----\n")
        return file


@pytest.fixture
def diracx(database_url: str, tmp_path: Path) -> Iterator[DiracX]:
    authority = Authority(tmp_path)
    authority.sign("host")
    authorities = authority.link_by_hash()
    issuer = TokenIssuer(*authority.sign("issuer"))
    issuer.start()
    trusted = [{"url": issuer.url, "kind": "diracx", "authorities": str(authority.certificate)}]
    settings = {"PILOTAGE_ISSUERS": json.dumps(trusted)}
    with ExitStack() as stack:
        stack.callback(issuer.stop)
        here = stack.enter_context(
            opened(tmp_path / "here", tmp_path, RESOURCES, database_url=database_url, **settings)
        )
        issuer.pass_on(here.url, authority.certificate)
        clients = GenuineClients.make(tmp_path / "dirac", url=here.url, authorities=authorities)
        (tmp_path / "future").mkdir()
        text = (tmp_path / "dirac" / "dirac.cfg").read_text()
        enabled = "FutureClientEnabled\n{\nWorkloadManagement\n{\nJobStateUpdate = yes\n}\n}"
        (tmp_path / "future" / "dirac.cfg").write_text(
            f"{text}\nDiracX\n{{\nURL = {issuer.url}\n{enabled}\n}}\n"
        )
        future = replace(
            clients, directory=tmp_path / "future", more={"DIRACX_CA_PATH": str(authority.certificate)}
        )
        yield DiracX(here.url, issuer, tmp_path, authority, clients, future)


def test_a_payload_reports_by_diracx(diracx: DiracX) -> None:
    user, pilot = diracx.proxy("ada", "lhcb_user"), diracx.proxy("pia", "lhcb_pilot")
    [submitted] = diracx.clients.call(user, ("JobManagerClient", "submitJob", JDL))
    job_id = submitted["Value"]
    deadline = time.monotonic() + PATIENCE
    while not diracx.clients.call(pilot, ("MatcherClient", "requestJob", RESOURCE))[0]["OK"]:
        assert time.monotonic() < deadline
    payload = diracx.proxy("ada", "lhcb_user", diracx.token())
    times = {
        "2100-11-23 12:00:01": {"Status": "Running", "MinorStatus": "Application", "Source": "JobWrapper"}
    }
    answers = diracx.future.call(
        payload,
        ("JobStateUpdateClient", "setJobStatusBulk", job_id, times),
        ("JobStateUpdateClient", "setJobApplicationStatus", job_id, "event 7 of 10"),
        ("JobStateUpdateClient", "setJobParameters", job_id, [["Custom", "5"], ["HostName", "node7"]]),
        ("JobStateUpdateClient", "sendHeartBeat", job_id, {"CPUConsumed": 1.0}, {"StandardOutput": "hello"}),
    )
    assert [each["OK"] for each in answers] == [True] * 4, answers
    assert answers[3]["Value"] == {}
    states, parameters, killed = diracx.clients.call(
        user,
        ("JobMonitoringClient", "getJobsStates", [job_id]),
        ("JobMonitoringClient", "getJobParameters", [job_id]),
        ("JobManagerClient", "killJob", [job_id]),
    )
    assert states["Value"][str(job_id)] == {
        "Status": "Running",
        "MinorStatus": "Application",
        "ApplicationStatus": "event 7 of 10",
    }
    assert parameters["Value"][str(job_id)] == {
        "CPUConsumed": "1.0",
        "Custom": "5",
        "HostName": "node7",
        "StandardOutput": "hello",
    }
    assert killed["Value"] == [job_id]
    [beat] = diracx.future.call(payload, ("JobStateUpdateClient", "sendHeartBeat", job_id, {}, {}))
    assert beat["Value"] == {"Kill": ""}

    other = diracx.proxy("bob", "lhcb_user", diracx.token("bob"))
    [refused] = diracx.future.call(other, ("JobStateUpdateClient", "setJobStatus", job_id, "Done", "", "x"))
    assert not refused["OK"]


def test_only_tokens_of_diracx_with_a_group_of_the_registry_are_accepted(diracx: DiracX) -> None:
    context = ssl.create_default_context(cafile=str(diracx.authority.certificate))

    def report(token: str | None, body: object = None, path: str = "status") -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        with httpx.Client(verify=context, timeout=300) as client:
            return client.patch(f"{diracx.url}/api/jobs/{path}", content=content, headers=headers).status_code

    assert report(diracx.token()) == 200
    assert report(None) == 401
    for changed in (
        {"dirac_group": "lhcb_admin"},
        {"dirac_group": None},
        {"vo": "dune"},
        {"aud": "another"},
        {"exp": 1},
        {"preferred_username": "eve"},
        {"sub": None},
    ):
        assert report(diracx.token(**changed)) == 401, changed
    assert report(diracx.issuer.token("", "", legacy_exchange=True, aud=None)) == 401  # a refresh token
    token = diracx.token()
    assert report(token[:-8] + "AAAAAAAA") == 401
    for body in (b"", b"\xff", b"[]", b'{"a": 1}', b'{"1": {"__dCls": "x"}}', b"{" * 2000, b'{"5.0": {}}'):
        assert report(token, body) == 400, body
    assert report(token, b" " * (2 << 20)) == 413
    for path in ("status", "heartbeat", "metadata"):
        for body in ({"1": {}}, {"1": 5}, {"9" * 19: {"a": 1}}, {"1": {"a": {"Status": ["x"]}}}):
            assert report(token, body, path) == 404, (path, body)
