"""Sessions of browsers, without a browser: what each request has to show."""

import json
import logging
from datetime import datetime, timedelta

import httpx
import pytest
from fastapi import Request

from cs_config.options import bounds
from pilotage.service.auth import access, callers, login_links, login_tokens
from pilotage.service.auth.callers import grant
from pilotage.service.auth.login_tokens import Purpose
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.pages import sessions
from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support.service import Service


def _link(client: httpx.Client, **wishes: str) -> str:
    answer = client.post("/api/v1/login-links", json=wishes)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["path"]).partition("#")[2]


def _follow(service: Service, browser: httpx.Client, link: str) -> httpx.Response:
    browser.headers["Origin"] = service.url
    return browser.post("/login", data={"link": link})


def _signed_in(service: Service, link: str) -> httpx.Client:
    browser = service.client()
    answer = _follow(service, browser, link)
    assert answer.status_code == 303, answer.text
    return browser


def _csrf(browser: httpx.Client) -> str:
    return sessions.csrf_of(next(iter(browser.cookies.jar)).value or "")


def test_a_session_may_what_the_token_may_that_asked_for_its_link(service: Service):
    browser = _signed_in(service, _link(service.user()))
    shown = browser.get("/").text
    assert "ada" in shown
    assert "operator" not in shown


def test_only_operators_ask_for_links_for_others(service: Service):
    wishes = {"role": "vo_admin", "vo": "cms"}
    assert service.user().post("/api/v1/login-links", json=wishes).status_code == 403
    browser = _signed_in(service, _link(service.operator(), **wishes))
    assert "vo admin" in browser.get("/").text


def test_programs_do_not_look_at_pages(service: Service):
    wishes = {"role": "pilot", "vo": "cms"}
    answer = service.operator().post("/api/v1/login-links", json=wishes)
    assert answer.status_code == 403
    assert "pilot" in answer.json()["error"]["message"]


def test_a_link_is_good_for_five_minutes(service: Service):
    now = utc_now()
    with database.writing(service.engine) as conn:
        secret, expires_at = login_tokens.issue_link(conn, "{}", now=now)
        assert expires_at == now + timedelta(minutes=5)
        assert login_tokens.redeem_link(conn, secret, Purpose.BROWSER, now=expires_at) is None
        before = expires_at - timedelta(seconds=1)
        assert login_tokens.redeem_link(conn, secret, Purpose.DEVICE, now=before) is None
        assert login_tokens.redeem_link(conn, secret, Purpose.BROWSER, now=before) == "{}"
        assert login_tokens.redeem_link(conn, secret, Purpose.BROWSER, now=now) is None


def test_a_link_is_not_exchanged_for_a_token(service: Service):
    link = _link(service.operator(), role="user", vo="cms", user="ada")
    answer = service.client(link).post("/api/v1/device-logins/token")
    assert answer.status_code == 401
    assert "ada" in _signed_in(service, link).get("/").text, "it is still good"


def test_the_token_of_a_command_line_lives_no_longer_than_a_session(service: Service):
    now = utc_now()
    caller = callers.grant(role="user", vo="cms", user="ada").caller
    session = {"caller": callers.claims_of(caller), "token_id": "x", "until": int(now.timestamp()) + 10**6}
    with database.writing(service.engine) as conn:
        secret, code, _ = login_tokens.begin_device(conn, address="192.0.2.1", now=now)
        assert login_tokens.confirm_device(conn, code, json.dumps(session), now=now)
    assert _follow(service, service.client(), secret).status_code == 401
    got = service.client(secret).post("/api/v1/device-logins/token").json()
    assert datetime.fromisoformat(got["expires_at"]) <= utc_now() + timedelta(hours=12)


def test_a_session_ends_when_the_token_is_revoked_that_asked_for_its_link(service: Service):
    token = service.token("user", vo="cms", user="ada")
    browser = _signed_in(service, _link(service.client(token)))
    assert browser.get("/").status_code == 200
    unused = _link(service.client(token))
    service.operator().post("/api/v1/tokens/revoke", json={"token": token})
    assert browser.get("/").headers["location"] == "/login"
    assert _follow(service, service.client(), unused).status_code == 401


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_a_person_signs_in_so_often_and_a_refused_link_stays_good(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounds, "SIGN_INS", 2)
    ada = service.user()
    for _ in range(2):
        browser = _signed_in(service, _link(ada))
        browser.headers["Origin"] = service.url
        assert browser.post("/logout", data={"csrf": _csrf(browser)}).status_code == 303
    link = _link(ada)
    refused = _follow(service, service.client(), link)
    assert refused.status_code == 429
    assert 1 <= int(seconds := refused.headers["retry-after"]) <= 120
    assert f"too many sign-ins, try again in {seconds} s" in refused.text
    with database.writing(service.engine) as conn:
        secret, code, _ = login_tokens.begin_device(conn, address="192.0.2.1", now=utc_now())
    assert login_links.confirm_device(service.parts, _token(service), code)
    assert service.client(secret).post("/api/v1/device-logins/token").status_code == 429
    for other in (service.user("bob"), service.operator(), service.operator(), service.operator()):
        _signed_in(service, _link(other))
    service.parts.rates._buckets.clear()
    _signed_in(service, link)
    assert service.client(secret).post("/api/v1/device-logins/token").json()["token"]


def _token(service: Service) -> BearerToken:
    return service.parts.tokens.verify(service.token("user", vo="cms", user="ada"), now=utc_now())


def test_a_session_lasts_no_longer_than_the_token(service: Service):
    token = service.token("user", vo="cms", user="ada", ttl=3600)
    browser = _signed_in(service, _link(service.client(token)))
    session = service.parts.tokens.verify(next(iter(browser.cookies.jar)).value or "", now=utc_now())
    assert session.expires_at <= service.parts.tokens.verify(token, now=utc_now()).expires_at


def test_signing_out_ends_the_session_and_not_the_token(service: Service):
    api = service.user()
    browser = _signed_in(service, _link(api))
    kept = "; ".join(f"{each.name}={each.value}" for each in browser.cookies.jar)
    assert browser.post("/logout", data={"csrf": _csrf(browser)}).headers["location"] == "/login"
    assert service.client().get("/", headers={"Cookie": kept}).status_code == 303
    assert api.get("/api/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    ("headers", "form"),
    [
        ({}, {}),
        ({}, {"csrf": "0" * 64}),
        ({"X-CSRF-Token": "ü".encode()}, {}),
        ({"Origin": "https://evil.example"}, None),
        ({"Origin": "null"}, None),
        ({"Origin": "http://["}, None),
        ({"Sec-Fetch-Site": "cross-site"}, None),
        ({"Sec-Fetch-Site": "same-site"}, None),
        ({"Sec-Fetch-Site": "none"}, None),
    ],
)
def test_a_change_that_no_page_of_the_session_asked_for_is_refused(service: Service, headers, form, caplog):
    browser = _signed_in(service, _link(service.user()))
    shown = {"csrf": _csrf(browser)} if form is None else form
    with caplog.at_level(logging.WARNING, "pilotage.audit"):
        answer = browser.post("/logout", data=shown, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forged_request"
    assert json.loads(caplog.messages[-1])["action"] == "refused"
    assert browser.get("/").status_code == 200


def test_the_token_of_another_session_is_no_good(service: Service):
    browser, other = (_signed_in(service, _link(service.user())) for _ in range(2))
    assert browser.post("/logout", data={"csrf": _csrf(other)}).status_code == 403


def test_a_script_may_show_the_token_in_a_header(service: Service):
    browser = _signed_in(service, _link(service.user()))
    headers = {"X-CSRF-Token": _csrf(browser), "Sec-Fetch-Site": "same-origin"}
    assert browser.post("/logout", headers=headers).status_code == 303


def test_another_site_cannot_sign_a_browser_in(service: Service):
    link = _link(service.user())
    for headers in ({}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert service.client().post("/login", data={"link": link}, headers=headers).status_code == 403
    _signed_in(service, link)


def test_the_interface_takes_no_cookie(service: Service):
    browser = _signed_in(service, _link(service.user()))
    assert browser.get("/api/v1/jobs").status_code == 401


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_who_guesses_links_is_slowed_down_and_written_down(service: Service, caplog):
    service.configure("Operations: {Defaults: {Limits: {RequestsPerSecond: 0.1}}}")
    guesser = service.client()
    guesser.headers["Origin"] = service.url
    with caplog.at_level(logging.WARNING, "pilotage.audit"):
        answers = [guesser.post("/login", data={"link": f"{n}"}).status_code for n in range(4)]
    assert set(answers) == {401, 429}
    line = json.loads(next(each for each in caplog.messages if "login" in each))
    assert line["address"] == "127.0.0.1"


def test_no_log_knows_the_secret(service: Service, caplog):
    with caplog.at_level(logging.DEBUG):
        link = _link(service.user())
        browser = _signed_in(service, link)
    ours = [each for each in caplog.records if not each.name.startswith("httpcore")]  # the browser's
    lines = "\n".join(record.getMessage() for record in ours)
    assert link not in lines
    assert (next(iter(browser.cookies.jar)).value or "x") not in lines
    actions = [
        json.loads(each.getMessage())["action"] for each in caplog.records if each.name == "pilotage.audit"
    ]
    assert actions == ["login link", "login"]


def test_under_tls_the_cookie_is_the_hosts_and_never_sent_without(service: Service):
    link = _link(service.user())
    headers = {"Origin": service.url.replace("http", "https"), "X-Forwarded-Proto": "https"}
    answer = service.client().post("/login", data={"link": link}, headers=headers)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-pilotage=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= set(cookie.split("; "))


def test_a_form_with_text_that_no_database_stores_is_refused(service: Service):
    browser = _signed_in(service, _link(service.operator()))
    for form in ({"reason": "a\0b"}, {"reason": "down", "x\0": ""}):
        answer = browser.post("/sites/LCG.A.org/ban", data={"csrf": _csrf(browser), **form})
        assert answer.status_code == 400, answer.text
        assert "character NUL" in answer.json()["error"]["message"]
    assert service.operator().get("/api/v1/sites/LCG.A.org").json()["ban"] is None


@pytest.mark.parametrize("charset", ["utf-7", "unicode_escape", "undefined", "punycode"])
def test_a_form_in_letters_of_the_senders_choice_is_not_read(service: Service, charset: str):
    browser = _signed_in(service, _link(service.user()))
    part = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    fields = {b"do": b"explain", b"jdl": b'Executable = "+2AA-\\ud800";', b"link": b"+2AA-\\ud800"}
    body = b"".join(part % field for field in fields.items()) + b"--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    for path in ("/jobs/new", "/login"):
        answer = browser.post(path, content=body, headers={**headers, "X-CSRF-Token": _csrf(browser)})
        assert answer.status_code == 400, answer.text
        assert "comes in parts" in answer.json()["error"]["message"]


def test_who_signs_out_ends_what_was_begun_with_a_copy_of_the_cookie(service: Service):
    browser = _signed_in(service, _link(service.user()))
    stolen = next(iter(browser.cookies.jar)).value or ""
    other = _signed_in(service, _link(service.client(stolen)))
    assert other.get("/").status_code == 200
    browser.post("/logout", data={"csrf": _csrf(browser)})
    assert other.get("/").headers["location"] == "/login"


def test_the_audit_log_names_a_session_so_that_an_operator_can_end_it(service: Service, caplog):
    with caplog.at_level(logging.INFO, "pilotage.audit"):
        browser = _signed_in(service, _link(service.user()))
    token_id = json.loads(caplog.messages[-1])["token_id"]
    service.operator().post("/api/v1/tokens/revoke", json={"jti": token_id}).raise_for_status()
    assert browser.get("/").headers["location"] == "/login"


def test_a_session_of_a_host_whose_clock_is_ahead_signs_in_again(service: Service):
    browser = _signed_in(service, _link(service.user()))
    ahead = grant(role="user", vo="cms", user="ada")
    token, _ = service.parts.tokens.mint(ahead, now=utc_now() + timedelta(minutes=5))
    next(iter(browser.cookies.jar)).value = token
    assert browser.get("/").headers["location"] == "/login"
    assert browser.get("/login").status_code == 200


def test_who_has_no_session_and_a_very_long_address_signs_in_all_the_same(service: Service):
    answer = service.client().get(f"/jobs?job_name={'x' * 4000}")
    assert answer.headers["location"] == "/login"


def test_who_guesses_a_link_does_not_wait_for_a_writer_nor_hold_one_up(service: Service):
    stranger = service.client()
    with database.writing(service.engine) as conn:
        login_tokens.issue_link(conn, "{}", now=utc_now())
        answer = stranger.post("/login", data={"link": "guessed"}, headers={"Origin": service.url})
    assert answer.status_code == 401


def test_the_page_of_a_code_shows_where_it_was_begun(service: Service):
    browser = _signed_in(service, _link(service.user()))
    begun = service.client().post("/api/v1/device-logins").json()
    assert "It was started on the host <b>127.0.0.1</b>" in browser.get(begun["path"]).text
    assert "It was started" not in browser.get("/login/device?code=XXXX-XXXX").text


def test_so_many_command_lines_wait_and_no_more(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "DEVICE_LOGINS", 0)
    answer = service.client().post("/api/v1/device-logins")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert answer.headers["Retry-After"] == "60"


def test_command_lines_of_one_address_take_no_places_of_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounds, "DEVICE_LOGINS_OF_ADDRESS", 1)
    addresses = ("192.0.2.1", "192.0.2.1", "192.0.2.2")
    answers = [
        service.client().post("/api/v1/device-logins", headers={"X-Forwarded-For": each})
        for each in addresses
    ]
    assert [each.status_code for each in answers] == [201, 503, 201]


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_wrong_secrets_of_a_command_line_refuse_no_other(service: Service):
    begun = service.client().post("/api/v1/device-logins").json()
    wrong = service.client("wrong")
    while (status := wrong.post("/api/v1/device-logins/token").status_code) == 401:
        pass
    assert status == 429
    assert service.client(begun["device_code"]).post("/api/v1/device-logins/token").status_code == 200


@pytest.mark.parametrize(
    ("host", "subject"),
    [
        ("192.0.2.1", "address:192.0.2.1"),
        ("2001:db8:1:2:3::4", "address:2001:db8:1:2::/64"),
        ("fe80::1%eth0", "address:fe80::/64"),
        ("::ffff:192.0.2.1", "address:192.0.2.1"),
        ("unknown", "address:unknown"),
    ],
)
def test_strangers_are_counted_by_address_or_network(host: str, subject: str):
    assert access.name_anonymous(Request({"type": "http", "client": (host, 1)})) == subject
