"""A command line is logged in by a browser: real command, real browser, real provider."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from pilotage.service.auth.oidc import issuer
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from taskqueue.db import database
from tests.support.processes import PILOTAGE
from tests.support.servers.chromium import SignedIn, picture
from tests.support.servers.login_provider import issuer_at, provider
from tests.support.service import CONFIG, Service, running

pytestmark = [
    pytest.mark.debian("chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the provider runs in this process
]


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    shutil.copy(sqlite_template, directory / "test.db")
    engine = database.connect(f"sqlite:///{directory / 'test.db'}")
    with provider({"ada": ["/cms"]}) as url:
        trusted = TrustedIssuer(issuer_at(url, *issuer.rules_of_vo("cms")))
        with running(engine, directory, CONFIG, issuers=Issuers([trusted])) as service:
            yield service
    engine.dispose()


def environment(service: Service, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
    return {**kept, "PILOTAGE_HOME": str(home), "PILOTAGE_URL": service.url}


@contextmanager
def logging_in(service: Service, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pilotage login --device`, waiting, and the address that it shows."""
    process = subprocess.Popen(
        [str(PILOTAGE), "login", "--device"],
        env=environment(service, home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = process.stderr.readline().removeprefix("Open ").strip()
        code = re.search(r"[A-Z]{4}-[A-Z]{4}", process.stderr.readline())
        assert code, address
        assert address.endswith(f"/login/device?code={code[0]}")
        yield process, address
    finally:
        process.kill()
        process.communicate()


def test_who_has_no_token_logs_in_by_a_browser(service: Service, windows, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with logging_in(service, home) as (process, address):
        page = windows.open(service)
        page.goto(address)
        page.get_by_role("link", name="Sign in with CERN").click()
        page.get_by_role("button", name="ada").click()
        expect(page.get_by_label("Code")).to_have_value(address.rpartition("=")[2])
        picture(page, "login/device")
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_text("Confirmed")).to_be_visible()
        said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert str(home / "client.env") in said
    assert (home / "client.env").stat().st_mode & 0o077 == 0

    def whoami() -> subprocess.CompletedProcess[str]:
        command = [str(PILOTAGE), "whoami", "--json"]
        return subprocess.run(
            command, env=environment(service, home), capture_output=True, text=True, timeout=300, check=False
        )

    assert json.loads(whoami().stdout)["user"] == "ada"
    page.goto("/")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    assert json.loads(whoami().stdout)["user"] == "ada", "as long as the session would have lasted"


def test_a_code_is_good_once_and_a_wrong_one_is_refused(service: Service, signed_in: SignedIn) -> None:
    begun = service.client().post("/api/v1/device-logins").json()
    waiting = service.client(begun["device_code"])
    page = signed_in(service, role="vo_admin", vo="cms", user="eve")
    page.goto("/login/device")
    page.get_by_label("Code").fill("XXXX-XXXX")
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("alert")).to_contain_text("No command line waits with the code XXXX-XXXX")
    assert waiting.post("/api/v1/device-logins/token").json() == {"token": None, "expires_at": None}
    page.get_by_label("Code").fill(begun["user_code"].lower().replace("-", " "))
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Confirmed")).to_be_visible()
    got = waiting.post("/api/v1/device-logins/token").json()
    assert service.client(got["token"]).get("/api/v1/tokens/me").json()["subject"] == "vo_admin:cms::eve"
    again = waiting.post("/api/v1/device-logins/token")
    assert (again.status_code, again.json()["error"]["code"]) == (401, "not_authenticated")


def test_the_token_is_revoked_with_the_one_that_began_the_session(
    service: Service, signed_in: SignedIn
) -> None:
    token = service.token("user", vo="cms", user="bob")
    link = service.client(token).post("/api/v1/login-links", json={}).json()["path"]
    browser = service.client()
    own = {"Origin": service.url}
    browser.post("/login", data={"link": link}, headers=own)
    begun = service.client().post("/api/v1/device-logins").json()
    csrf = re.search(r'name="csrf" value="(\w+)"', browser.get(begun["path"]).text)
    assert csrf
    answer = browser.post("/login/device", data={"code": begun["user_code"], "csrf": csrf[1]}, headers=own)
    assert answer.status_code == 200
    got = service.client(begun["device_code"]).post("/api/v1/device-logins/token").json()["token"]
    client = service.client(got)
    assert client.get("/api/v1/tokens/me").json()["user"] == "bob"
    service.operator().post("/api/v1/tokens/revoke", json={"token": token}).raise_for_status()
    assert client.get("/api/v1/tokens/me").status_code == 401
