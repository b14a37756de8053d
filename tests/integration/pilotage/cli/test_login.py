"""`pilotage login` against a real service, as it is typed."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pilotage.cli.commands import login
from pilotage.client.api import Json, ServiceAway
from tests.support.commands import Run, run
from tests.support.service import Service

__all__ = ["run"]


def _who(service: Service, link: str) -> str:
    browser = service.client()
    browser.post("/login", data={"link": link}, headers={"Origin": service.url})
    return browser.get("/").text


@pytest.fixture(autouse=True)
def home(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PILOTAGE_URL", service.url)
    return tmp_path / "home"


def test_the_bearer_of_a_token_gets_a_link_for_itself(service: Service, monkeypatch, run: Run):
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("user", vo="cms", user="ada"))
    status, link, _ = run("login")
    assert status == 0
    assert link.startswith(f"{service.url}/login#")
    assert "<b>ada</b>" in _who(service, link)


def _copy_key(service: Service, home: Path) -> None:
    home.mkdir()
    private = service.parts.tokens.keys.signing.private
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (home / "signing-key.pem").write_bytes(pem)


@pytest.mark.parametrize("token", ["", "x"], ids=["signed", "given"])
@pytest.mark.parametrize("url", ["host", "http://h:99999"])
def test_an_address_that_is_none_is_a_service_that_is_away(
    service: Service, home: Path, monkeypatch, run: Run, url: str, token: str
):
    _copy_key(service, home)
    monkeypatch.setenv("PILOTAGE_TOKEN", token)
    status, _, said = run("login", "--url", url, "--json")
    error = json.loads(said)["error"]
    assert (status, error["code"]) == (1, "service_away")
    assert error["message"].startswith(f"{url!r} is not a service address such as https://")


def test_a_wrong_proxy_of_a_signed_login_is_wrong_usage(service: Service, home: Path, monkeypatch, run: Run):
    _copy_key(service, home)
    monkeypatch.setenv("PILOTAGE_PROXY", "socks5://h")
    status, _, said = run("login")
    assert status == 2
    assert "'socks5://h' is not a proxy address" in said


def test_whoever_holds_the_key_needs_no_token(service: Service, home: Path, run: Run):
    _copy_key(service, home)
    status, answer, said = run("login", "--role", "vo_admin", "--vo", "dune", "--user", "eve", "--json")
    assert status == 0, said
    page = _who(service, json.loads(answer)["link"])
    assert "<b>eve</b>" in page
    assert "dune" in page


def test_a_vo_without_a_role_is_refused(run: Run):
    status, _, said = run("login", "--vo", "cms")
    assert status == 2
    assert "--role" in said


@pytest.mark.parametrize("command", [["revoke"], ["token", "revoke"]])
def test_an_operator_revokes_a_token(service: Service, monkeypatch, run: Run, command: list[str]):
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("operator", user="root"))
    token = service.token("user", vo="cms", user="ada")
    status, out, err = run(*command, token)
    assert (status, out) == (0, "revoked\n"), err
    assert service.client(token).get("/api/v1/jobs").status_code == 401


def test_a_failed_poll_does_not_end_a_login_of_the_commands(monkeypatch) -> None:
    answers = [ServiceAway("away"), {"token": None}, ServiceAway("away"), {"token": "t", "expires_at": "x"}]

    class Client:
        def fetch_device_token(self) -> Json:
            answer = answers.pop(0)
            if isinstance(answer, ServiceAway):
                raise answer
            return answer

    assert login._wait_for_token(Client(), seconds=0)["token"] == "t"
