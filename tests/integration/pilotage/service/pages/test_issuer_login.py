"""Signing in with an issuer, in a browser, against a real provider."""

import logging
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from pilotage.service.auth.callers import Role
from pilotage.service.auth.oidc import code_flow, issuer
from pilotage.service.auth.oidc.discovery import IssuerAway
from pilotage.service.auth.oidc.issuer import RoleRule
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from taskqueue.db import database
from tests.support.servers.chromium import picture
from tests.support.servers.login_provider import issuer_at, provider
from tests.support.service import CONFIG, NO_AUTHORITIES, Service, running

pytestmark = [
    pytest.mark.debian("chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the provider runs in this process
]

HOSTILE = "<img src=x onerror=alert(1)>"
PEOPLE = {
    "ada": ["/cms"],
    "eve": ["/cms", "/cms/pilotage_admin", "/cms/T2_A"],
    "mallory": ["/dune", HOSTILE],
}
SITE = RoleRule(role=Role.SITE_ADMIN, group="/cms/T2_A", site="LCG.A.org")


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    shutil.copy(sqlite_template, directory / "test.db")
    engine = database.connect(f"sqlite:///{directory / 'test.db'}")
    with provider(PEOPLE) as url:
        trusted = TrustedIssuer(issuer_at(url, *issuer.rules_of_vo("cms"), SITE))
        with running(engine, directory, CONFIG, issuers=Issuers([trusted])) as service:
            yield service
    engine.dispose()


def sign_in(page, name: str) -> None:
    page.get_by_role("link", name="Sign in with CERN").click()
    page.get_by_role("button", name=name).click()


def test_a_member_signs_in_and_comes_back_to_where_she_was(service: Service, windows):
    page = windows.open(service)
    page.goto("/?a=1")
    sign_in(page, "ada")
    page.wait_for_url(f"{service.url}/?a=1")
    expect(page.get_by_role("banner").get_by_text("ada")).to_be_visible()
    [cookie] = page.context.cookies(service.url)
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"


def test_who_has_several_roles_chooses_one(service: Service, windows):
    page = windows.open(service)
    page.goto("/login?next=%2F%3Fb%3D2")
    sign_in(page, "eve")
    expect(page.get_by_role("heading", level=1)).to_have_text("Continue as")
    expect(page.get_by_role("button")).to_have_text(
        ["vo admin of cms", "user of cms, group cms_user", "site admin of LCG.A.org"]
    )
    picture(page, "login/role")
    page.get_by_role("button", name="site admin of LCG.A.org").press("Enter")
    page.wait_for_url(f"{service.url}/?b=2")
    expect(page.get_by_role("banner")).to_contain_text(re.compile("site.admin"))


def test_who_has_no_role_is_told_which_groups_were_seen(service: Service, windows):
    page = windows.open(service)
    page.goto("/login")
    sign_in(page, "mallory")
    expect(page.get_by_text("none of your groups at CERN has a role here")).to_be_visible()
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert not page.context.cookies(service.url) or "-sign-in" in page.context.cookies(service.url)[0]["name"]


class Browser:
    """One browser without a window, which follows no redirection by itself."""

    def __init__(self, service: Service) -> None:
        self.http = httpx.Client(base_url=service.url, trust_env=False, verify=NO_AUTHORITIES, timeout=300)

    def begin(self, next_page: str = "/") -> str:
        answer = self.http.get("/login/issuers/CERN", params={"next": next_page})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def approve(self, address: str, name: str = "ada") -> dict[str, str]:
        """What the provider has the browser bring back."""
        answer = httpx.post(address, data={"sub": name}, trust_env=False, timeout=300)
        return {key: value for key, [value] in parse_qs(urlsplit(answer.headers["location"]).query).items()}

    def come_back(self, brought: dict[str, str]) -> httpx.Response:
        return self.http.get("/login/callback/CERN", params=brought)


@pytest.fixture
def browser(service: Service) -> Iterator[Browser]:
    made = Browser(service)
    yield made
    made.http.close()


def test_the_issuer_is_asked_with_proof_that_only_this_browser_has(browser: Browser, service: Service):
    asked = parse_qs(urlsplit(browser.begin()).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{service.url}/login/callback/CERN"]
    again = parse_qs(urlsplit(browser.begin()).query)
    assert not {*asked["state"], *asked["nonce"], *asked["code_challenge"]} & {
        *again["state"],
        *again["nonce"],
        *again["code_challenge"],
    }


def test_an_answer_signs_in_only_the_browser_that_asked(browser: Browser, service: Service):
    brought = browser.approve(browser.begin())
    victim = Browser(service)
    assert victim.come_back(brought).status_code == 401
    victim.begin()
    assert victim.come_back(brought).status_code == 401
    victim.http.close()
    assert browser.come_back(brought).status_code == 303
    # The provider takes a code once, and the browser forgot the attempt.
    assert browser.come_back(brought).status_code == 401


def test_a_code_from_another_sign_in_is_refused_by_its_nonce(browser: Browser, service: Service):
    stolen = browser.approve(browser.begin())["code"]
    mine = browser.approve(browser.begin())
    answer = browser.come_back({**mine, "code": stolen})
    assert (answer.status_code, "another sign-in" in answer.text) == (401, True)


@pytest.mark.parametrize(
    "brought",
    [
        {},
        {"state": "x"},
        {"code": "x"},
        {"state": "é", "code": "x"},
        {"error": "access_denied"},
        {"error": HOSTILE, "state": "x"},
        {"state": "x" * 5000, "code": "x"},
    ],
)
def test_what_is_no_answer_signs_nobody_in(browser: Browser, brought: dict[str, str]):
    browser.begin()
    answer = browser.http.get("/login/callback/CERN", params=brought, headers={"Accept": "text/html"})
    assert answer.status_code in (400, 401)
    assert HOSTILE not in answer.text


def test_an_answer_of_another_issuer_is_refused(browser: Browser):
    brought = browser.approve(browser.begin())
    answer = browser.come_back({**brought, "iss": "https://evil.example.org"})
    assert (answer.status_code, "another issuer" in answer.text) == (401, True)


def test_an_answer_at_the_address_of_another_issuer_is_refused(browser: Browser):
    brought = browser.approve(browser.begin())
    answer = browser.http.get("/login/callback/Other", params=brought)
    assert (answer.status_code, "another issuer" in answer.text) == (401, True)


def test_a_choice_of_roles_signs_in_once(browser: Browser):
    assert browser.come_back(browser.approve(browser.begin(), "eve")).status_code == 200
    [cookie] = [each for each in browser.http.cookies.jar if each.name.endswith("-sign-in")]
    origin = {"Origin": str(browser.http.base_url).rstrip("/")}

    def choose() -> int:
        browser.http.cookies.jar.set_cookie(cookie)
        return browser.http.post("/login/role", data={"choice": "0"}, headers=origin).status_code

    assert choose() == 303
    assert choose() == 401


def test_a_kept_attempt_that_was_changed_is_refused(browser: Browser):
    brought = browser.approve(browser.begin())
    [(name, value)] = browser.http.cookies.items()
    browser.http.cookies.set(name, value[:-6] + "AAAAAA", domain="127.0.0.1")
    browser.http.cookies.delete(name, domain="127.0.0.1", path="/")
    browser.http.cookies.set(name, value[:-6] + "AAAAAA")
    assert browser.come_back(brought).status_code == 401


def test_what_is_kept_for_one_sign_in_is_no_session_and_no_token(browser: Browser, service: Service):
    browser.begin()
    [(name, value)] = browser.http.cookies.items()
    assert service.client(value).get("/api/v1/jobs").status_code == 401
    session = {"Cookie": f"{name.removesuffix('-sign-in')}={value}"}
    with httpx.Client(base_url=service.url, headers=session, trust_env=False, timeout=300) as other:
        assert other.get("/").status_code == 303


def test_a_role_that_was_not_offered_is_not_given(browser: Browser, service: Service):
    own = {"Origin": service.url}
    assert browser.http.post("/login/role", data={"choice": "0"}, headers=own).status_code == 401
    assert browser.come_back(browser.approve(browser.begin(), "eve")).status_code == 200
    assert browser.http.post("/login/role", data={"choice": "3"}, headers=own).status_code == 401
    foreign = {"Origin": "https://evil.example.org"}
    assert browser.http.post("/login/role", data={"choice": "0"}, headers=foreign).status_code == 403
    assert browser.http.post("/login/role", data={"choice": "1"}, headers=own).status_code == 303


def test_sign_ins_are_in_the_audit_log_without_codes_or_tokens(
    browser: Browser, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        brought = browser.approve(browser.begin())
        browser.come_back({**brought, "state": "wrong"})
        answer = browser.come_back(brought)
    lines = [record.getMessage() for record in caplog.records if record.name == "pilotage.audit"]
    assert ["reason" in line for line in lines] == [True, False]
    assert all('"action": "login"' in line and "127.0.0.1" in line for line in lines)
    session = answer.cookies.get(next(iter(answer.cookies)))
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("pilotage"))
    assert brought["code"] not in ours
    assert session not in ours


def test_an_issuer_that_hangs_leaves_threads_for_everybody_else(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    """Strangers from many addresses begin to sign in; other requests need threads, too."""
    goes_on = threading.Event()

    def hang(*_: object) -> NoReturn:
        goes_on.wait()
        raise IssuerAway("CERN does not answer")

    monkeypatch.setattr(code_flow, "begin", hang)

    def begin(number: int) -> int:
        address = {"X-Forwarded-For": f"10.1.{number // 5}.{number}"}
        return httpx.get(
            f"{service.url}/login/issuers/CERN",
            headers=address,
            trust_env=False,
            verify=NO_AUTHORITIES,
            timeout=300,
        ).status_code

    with ThreadPoolExecutor(60) as strangers:
        waiting = [strangers.submit(begin, number) for number in range(60)]
        try:
            assert service.operator().get("/api/v1/jobs", timeout=300).status_code == 200
        finally:
            goes_on.set()
        assert {each.result() for each in waiting} == {503}


def test_nobody_signs_in_with_an_issuer_that_is_not_there(browser: Browser):
    assert browser.http.get("/login/issuers/nobody").status_code == 404
