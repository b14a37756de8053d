"""Tokens of another issuer, over HTTP: the service asks a real one for its keys."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.servers.certificates import Authority
from pilotage.cli import wiring as issuers_of_settings
from pilotage.cli.settings import IssuerSettings
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from taskqueue.db import database
from tests.support import wait
from tests.support.servers.token_issuer import TokenIssuer
from tests.support.service import CONFIG, Service, running

US = "https://pilotage.example.org"
QUEUE = "LCG.A.org/ce1/long"
GROUPS = {"wlcg.groups": ["/cms"]}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def issuer(authority: Authority, tmp_path: Path) -> Iterator[TokenIssuer]:
    issuer = TokenIssuer(*authority.sign(tmp_path.name))
    issuer.start()
    yield issuer
    issuer.stop()


def settings_of(issuer: TokenIssuer, authority: Authority, **changed: object) -> IssuerSettings:
    roles = [
        {"role": "vo_admin", "group": "/cms/pilotage_admin"},
        {"role": "site_admin", "group": "/cms/T2_A", "site": "LCG.A.org"},
        {"role": "user", "group": "/cms"},
    ]
    said = {"url": issuer.url, "audience": US, "vo": "CMS", "authorities": authority.certificate}
    return IssuerSettings.model_validate({**said, "roles": roles, **changed})


@pytest.fixture
def service(
    sqlite_template: Path, tmp_path: Path, issuer: TokenIssuer, authority: Authority
) -> Iterator[Service]:
    (tmp_path / "db").write_bytes(sqlite_template.read_bytes())
    engine = database.connect(f"sqlite:///{tmp_path / 'db'}")
    trusted = issuers_of_settings.trusted_issuers([settings_of(issuer, authority)])
    with running(engine, tmp_path, CONFIG, issuers=trusted) as service:
        yield service
    engine.dispose()


def ask(service: Service, token: str, method: str = "GET", path: str = "/jobs", body: object = None) -> int:
    return service.client(token).request(method, f"/api/v1{path}", json=body).status_code


def test_a_member_submits_with_the_token_of_the_vos_issuer(service: Service, issuer: TokenIssuer):
    ada = service.client(issuer.token("ada", US, scope="openid", **GROUPS))
    answer = ada.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]})
    assert answer.status_code == 201, answer.text
    [job_id] = answer.json()["job_ids"]
    job = service.user("ada").get(f"/api/v1/jobs/{job_id}").json()
    assert (job["owner"], job["owner_group"], job["vo"]) == ("ada", "cms_user", "cms")
    assert ask(service, issuer.token("bob", US, scope="", **GROUPS), path=f"/jobs/{job_id}") == 404


def test_groups_become_roles(service: Service, issuer: TokenIssuer):
    [job_id] = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).json()["job_ids"]
    admin = issuer.token("eve", US, scope="", **{"wlcg.groups": ["/cms", "/cms/pilotage_admin"]})
    assert ask(service, admin, path=f"/jobs/{job_id}") == 200
    site = issuer.token("sam", US, scope="", **{"wlcg.groups": ["/cms/T2_A"]})
    assert ask(service, site, "POST", "/sites/LCG.A.org/ban", {"reason": "power cut"}) == 200
    assert ask(service, site, "POST", "/sites/LCG.B.org/ban", {"reason": "power cut"}) == 403
    assert ask(service, issuer.token("x", US, scope="", **{"wlcg.groups": ["/dune"]})) == 401


def test_who_has_several_roles_may_what_any_of_them_may(service: Service, issuer: TokenIssuer):
    groups = {"wlcg.groups": ["/cms", "/cms/pilotage_admin", "/cms/T2_A"]}
    sam = service.client(issuer.token("sam", US, scope="", **groups))
    [job_id] = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).json()["job_ids"]
    assert sam.get(f"/api/v1/jobs/{job_id}").json()["owner"] == "ada"
    assert sam.post("/api/v1/sites/LCG.A.org/ban", json={"reason": "x"}).status_code == 200
    assert sam.post("/api/v1/sites/LCG.B.org/ban", json={"reason": "x"}).status_code == 403
    sam.headers["If-Match"] = "1"
    queue = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/long"
    both = {f"{queue}/MaxRAM": 8000, f"{queue}/VOs/cms/MaxRAM": 6000}
    assert sam.patch("/api/v1/config", json={"set": both}).status_code == 200
    of_dune = {f"{queue}/VOs/dune/MaxRAM": 6000}
    assert sam.patch("/api/v1/config", json={"set": of_dune}).status_code == 403


CAPABILITIES = {
    "compute.read": [("GET", "/jobs", None), ("POST", "/explain", {"jobs": [{"Executable": "x"}]})],
    "compute.create": [("POST", "/jobs", {"jobs": [{"Executable": "x"}]}), ("POST", "/sandboxes", None)],
    "compute.cancel": [("POST", "/jobs/kill", {"ids": [1]})],
    "compute.modify": [("POST", "/jobs/reschedule", {"ids": [1]})],
}


@pytest.mark.parametrize("scope", CAPABILITIES)
def test_a_token_with_one_capability_is_good_for_that_only(service: Service, issuer: TokenIssuer, scope: str):
    token = issuer.token("ada", US, scope=scope, **GROUPS)
    for needed, requests in CAPABILITIES.items():
        for request in requests:
            assert (ask(service, token, *request) == 403) == (needed != scope), (scope, request)


def test_bad_tokens_are_401_and_say_no_more_than_that(service: Service, issuer: TokenIssuer):
    assert ask(service, issuer.token("ada", "https://elsewhere", **GROUPS)) == 401
    assert ask(service, issuer.token("ada", US, exp=1, **GROUPS)) == 401
    assert ask(service, issuer.token("ada", US, iss="https://evil.example.org", **GROUPS)) == 401


def test_own_tokens_ask_no_issuer(service: Service, issuer: TokenIssuer):
    wait.until(lambda: len(issuer.asked) == 2)  # its description and its keys, at the start of the service
    assert ask(service, service.token("operator", user="root")) == 200
    pilot = service.pilot(QUEUE)
    resource = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 1}
    before = len(issuer.asked)
    assert pilot.post("/api/v1/matcher/requestJob", json=resource).status_code == 200
    assert len(issuer.asked) == before


@pytest.mark.parametrize("key_id", ["second", None])
def test_a_new_key_is_learned_with_the_first_token_that_it_signed(
    service: Service, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch, key_id: str | None
):
    monkeypatch.setattr(discovery, "PATIENCE", 0.0)
    assert ask(service, issuer.token("ada", US, **GROUPS)) == 200
    before = issuer.token("ada", US, **GROUPS)
    issuer.rotate(key_id)
    assert ask(service, issuer.token("ada", US, **GROUPS)) == 200
    assert ask(service, before) == 401


def test_whoever_invents_keys_does_not_make_us_ask_each_time(
    service: Service, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(discovery, "PATIENCE", 300.0)
    good = issuer.token("ada", US, **GROUPS)
    assert ask(service, good) == 200
    issuer.rotate("unpublished")
    invented = [issuer.token(name, US, **GROUPS) for name in "abcde"]
    issuer.rotate("other")
    before = issuer.asked.count("/jwks")
    assert {ask(service, token) for token in invented} == {401}
    assert issuer.asked.count("/jwks") - before <= 1
    assert ask(service, good) in (200, 401)  # withdrawn, if it was asked once more


def test_an_issuer_that_is_away_makes_its_tokens_401_and_nothing_else(
    service: Service, issuer: TokenIssuer, authority: Authority
):
    away = replace(
        issuers_of_settings.trusted_issuers([settings_of(issuer, authority)])
        .find(issuer.token("a", US))
        .issuer,
        url="https://localhost:9",
        name="away",
    )
    object.__setattr__(service.parts, "issuers", Issuers([TrustedIssuer(away)]))
    assert ask(service, issuer.token("ada", US, iss=away.url, **GROUPS)) == 401
    assert ask(service, service.token("operator", user="root")) == 200


def test_an_operator_revokes_a_token_of_an_issuer(service: Service, issuer: TokenIssuer):
    token = issuer.token("ada", US, **GROUPS)
    assert ask(service, token) == 200
    assert service.operator().post("/api/v1/tokens/revoke", json={"token": token}).status_code == 204
    assert ask(service, token) == 401
    assert ask(service, issuer.token("ada", US, **GROUPS)) == 200


def test_a_token_of_an_issuer_is_not_renewed_here(service: Service, issuer: TokenIssuer):
    assert ask(service, issuer.token("ada", US, **GROUPS), "POST", "/tokens/renew") == 403
