"""What is said to an issuer when somebody signs in, and which of its answers are believed."""

from base64 import b64decode, urlsafe_b64encode
from dataclasses import replace
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from pilotage.service.auth.oidc import code_flow, discovery
from pilotage.service.auth.oidc.discovery import IssuerAway, Published
from pilotage.service.auth.oidc.issuer import SignIn
from pilotage.service.auth.oidc.issuers import TrustedIssuer
from pilotage.service.http_errors import NotAuthenticated
from tests.unit.pilotage.service.auth.test_issuers import CMS, NOW, RSA, signed

US = "https://pilotage.example.org/login/callback"
ENDPOINTS = {
    f"{name}_endpoint": f"https://cms-auth.example.org/{name}"
    for name in ("authorization", "token", "userinfo")
}
ABOUT = replace(CMS, sign_in=SignIn(client_id="we:1", client_secret="a b"))


class Talk:
    """An issuer that signs in `sub`, with what is changed in its answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changed: object) -> None:
        self.form: dict[str, list[str]] = {}
        self.credential = ""
        self.info: dict[str, object] = {"sub": "4f1e", "groups": ["/cms"]}
        keys = (RSA.as_dict(private=False),)
        self.trusted = TrustedIssuer(ABOUT, lambda _: Published(keys=keys, endpoints=ENDPOINTS))
        monkeypatch.setattr(
            discovery, "client", lambda _: httpx.Client(transport=httpx.MockTransport(self._answer))
        )
        self.attempt, self.address = code_flow.begin(self.trusted, US)
        self.claims = {"aud": "we:1", "nonce": self.attempt.nonce, **changed}

    def finish(self) -> dict[str, object]:
        return code_flow.finish(self.trusted, self.attempt, state=self.attempt.state, code="c1", now=NOW)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/userinfo":
            assert request.headers["Authorization"] == "Bearer a1"
            return httpx.Response(200, json=self.info)
        self.form = parse_qs(request.content.decode())
        self.credential = request.headers["Authorization"]
        return httpx.Response(200, json={"id_token": signed(**self.claims), "access_token": "a1"})


def test_the_code_is_exchanged_with_the_proof_that_was_announced(monkeypatch: pytest.MonkeyPatch):
    talk = Talk(monkeypatch)
    assert talk.finish()["sub"] == "4f1e"
    [verifier] = talk.form["code_verifier"]
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    assert parse_qs(urlsplit(talk.address).query)["code_challenge"] == [challenge]
    assert (talk.form["code"], talk.form["redirect_uri"]) == (["c1"], [US])
    assert b64decode(talk.credential.removeprefix("Basic ")) == b"we%3A1:a%20b"
    assert verifier not in talk.address


def test_what_stands_only_in_the_user_information_is_known(monkeypatch: pytest.MonkeyPatch):
    assert Talk(monkeypatch).finish()["groups"] == ["/cms"]


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "another client"},
        {"aud": ["we:1", "another"]},
        {"azp": "another"},
        {"nonce": "old"},
        {"nonce": None},
        {"exp": 1},
        {"iss": "https://evil.example.org"},
    ],
)
def test_an_answer_that_is_not_about_this_sign_in_is_refused(
    changed: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(NotAuthenticated):
        Talk(monkeypatch, **changed).finish()


def test_user_information_about_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch):
    talk = Talk(monkeypatch)
    talk.info = {"sub": "eve", "groups": ["/cms/pilotage_admin"]}
    with pytest.raises(NotAuthenticated, match="another person"):
        talk.finish()


def test_codes_are_sent_nowhere_without_tls(monkeypatch: pytest.MonkeyPatch):
    talk = Talk(monkeypatch)
    plain = {**ENDPOINTS, "token_endpoint": "http://cms-auth.example.org/token"}
    monkeypatch.setattr(type(talk.trusted.keys), "endpoints", plain)
    with pytest.raises(IssuerAway, match="not https"):
        talk.finish()
