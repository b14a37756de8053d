"""What tokens of other issuers are worth; the issuer is one of this process."""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from joserfc import jwt as joserfc_jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from pilotage.service.auth.callers import Capability, Role, grant
from pilotage.service.auth.keys import KeyRing, generate
from pilotage.service.auth.oidc import discovery, issuer
from pilotage.service.auth.oidc.discovery import PATIENCE, IssuerAway, IssuerKeys, Published
from pilotage.service.auth.oidc.issuer import Issuer, RoleRule
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from pilotage.service.auth.tokens import Tokens, UnknownKey
from pilotage.service.http_errors import NotAuthenticated
from requirements.errors import InvalidRequest

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
URL = "https://cms-auth.example.org/"
US = "https://pilotage.example.org"
CMS = Issuer(name="cms", url=URL, audiences=frozenset({US}), vo="cms", rules=issuer.rules_of_vo("cms"))
RSA = RSAKey.generate_key(2048, {"kid": "r1"})
EC = ECKey.generate_key("P-256", {"kid": "e1"})
ED = OKPKey.generate_key("Ed25519", {"kid": "o1"})


def published(*keys: object) -> Published:
    return Published(keys=tuple(key.as_dict(private=False) for key in keys), endpoints={})  # type: ignore[attr-defined]


def trusting(*keys: object, about: Issuer = CMS) -> TrustedIssuer:
    trusted = TrustedIssuer(about, lambda _: published(*keys))
    trusted.refresh()
    return trusted


def claims(**changed: object) -> dict[str, object]:
    now = int(NOW.timestamp())
    said = {
        "iss": URL,
        "sub": "4f1e",
        "aud": US,
        "iat": now,
        "nbf": now - 60,
        "exp": now + 3600,
        "jti": "j1",
        "wlcg.ver": "1.0",
        "wlcg.groups": ["/cms"],
        **changed,
    }
    return {name: value for name, value in said.items() if value is not None}


def signed(key: object = RSA, algorithm: str = "RS256", header: object = None, **changed: object) -> str:
    kid = {} if key.kid is None else {"kid": key.kid}  # type: ignore[attr-defined]
    return joserfc_jwt.encode(  # type: ignore[no-any-return]
        {"alg": algorithm, "typ": "JWT", **kid, **(header or {})},  # type: ignore[dict-item]
        claims(**changed),
        key,
        algorithms=[algorithm],
    )


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # issuers go on to use it
@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "EdDSA")])
def test_a_member_of_the_vo_is_its_user_whatever_kind_of_key_signed(key: object, algorithm: str):
    token = trusting(RSA, EC, ED).verify(signed(key, algorithm), now=NOW)
    assert (token.caller.role, token.caller.vos, token.caller.user) == (Role.USER, {"cms"}, "4f1e")
    assert token.caller.capabilities is None
    assert token.token_id == "cms:j1"


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"aud": "https://elsewhere"}, "another audience"),
        ({"aud": None}, "not good"),
        ({"aud": []}, "not good|another audience"),
        ({"iss": "https://evil.example.org/"}, "not of cms"),
        ({"iss": None}, "not good"),
        ({"sub": None}, "not good"),
        ({"exp": None}, "not good"),
        ({"exp": "soon"}, "not a time"),
        ({"exp": int(NOW.timestamp()) - 31}, "expired"),
        ({"nbf": int(NOW.timestamp()) + 31}, "not good yet"),
        ({"iat": int(NOW.timestamp()) + 31}, "not good yet"),
        ({"wlcg.groups": []}, "no"),
        ({"wlcg.groups": ["/cmsx", "/cms/production", "cms"]}, "has a role here"),
        ({"wlcg.groups": "/cms"}, "has a role here"),
        ({"sub": "a\u0000b"}, "does not describe a valid caller"),
    ],
)
def test_what_is_not_good_is_refused(changed: dict[str, object], match: str):
    with pytest.raises(NotAuthenticated, match=match):
        trusting(RSA).verify(signed(**changed), now=NOW)


def test_clocks_may_differ_a_little():
    trusted = trusting(RSA)
    almost = int(NOW.timestamp())
    trusted.verify(signed(exp=almost - 29), now=NOW)
    trusted.verify(signed(nbf=almost + 29, iat=almost + 29), now=NOW)


def test_one_of_several_audiences_is_enough():
    assert trusting(RSA).verify(signed(aud=["https://elsewhere", US]), now=NOW)


def test_a_token_that_was_good_is_refused_when_it_is_over():
    trusted, token = trusting(RSA), signed()
    trusted.verify(token, now=NOW)
    with pytest.raises(NotAuthenticated, match="expired"):
        trusted.verify(token, now=NOW + timedelta(hours=1, seconds=30))


def test_no_signature_and_no_shared_secret_is_believed():
    trusted = trusting(RSA, OctKey.import_key("a secret that is published by mistake"))
    unsigned = jwt.encode(claims(), key="", algorithm="none", headers={"kid": "r1"})
    parts = [{"alg": "HS256", "kid": "r1"}, claims()]
    said = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    mac = hmac.new(RSA.as_pem(private=False), said, "sha256").digest()
    confused = (said + b"." + urlsafe_b64encode(mac).rstrip(b"=")).decode()
    for token in (unsigned, confused):
        with pytest.raises(NotAuthenticated, match="not an allowed algorithm"):
            trusted.verify(token, now=NOW)


def test_a_key_is_not_taken_for_another_algorithm_than_it_says():
    limited = RSAKey.import_key({**RSA.as_dict(private=True), "alg": "RS512"})
    with pytest.raises(UnknownKey):
        trusting(limited).verify(signed(RSA, "RS256"), now=NOW)
    encrypting = RSAKey.import_key({**RSA.as_dict(private=True), "use": "enc"})
    with pytest.raises(UnknownKey):
        trusting(encrypting).verify(signed(), now=NOW)


def test_keys_without_names_are_tried_one_after_the_other():
    nameless = [RSAKey.generate_key(2048, auto_kid=False) for _ in range(2)]
    trusted = trusting(*nameless)
    for key in nameless:
        assert trusted.verify(signed(key), now=NOW).caller.user == "4f1e"
    with pytest.raises(UnknownKey):
        trusted.verify(signed(RSAKey.generate_key(2048, auto_kid=False)), now=NOW)


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "ey.ey.ey", "é" * 40, "eyJhbGciOiJub25lIn0.e30."])
def test_what_is_no_token_is_of_nobody(text: str):
    with pytest.raises(NotAuthenticated):
        Issuers([trusting(RSA)]).find(text)
    with pytest.raises(NotAuthenticated):
        trusting(RSA).verify(text, now=NOW)


def test_a_token_goes_to_the_issuer_that_it_names():
    dune = replace(CMS, name="dune", url="https://dune.example.org", vo="dune")
    both = Issuers([trusting(RSA), trusting(EC, about=dune)])
    assert both.find(signed()).issuer.name == "cms"
    assert both.find(signed(iss="https://dune.example.org/")).issuer.name == "dune"
    with pytest.raises(NotAuthenticated):
        both.find(signed(iss="https://else.example.org"))
    # The name alone proves nothing: only the issuer's own keys verify.
    with pytest.raises(UnknownKey):
        both.find(signed(iss="https://dune.example.org")).verify(
            signed(iss="https://dune.example.org"), now=NOW
        )


class Asked:
    """An issuer whose answer changes."""

    def __init__(self, answer: Published | None) -> None:
        self.answer = answer
        self.times = 0

    def __call__(self) -> Published:
        self.times += 1
        if self.answer is None:
            raise IssuerAway("does not answer")
        return self.answer


def test_a_new_key_is_fetched_but_not_more_often_than_every_few_seconds():
    asked = Asked(published(RSA))
    keys = IssuerKeys(asked)
    assert keys.refresh(now=100.0)
    asked.answer = published(EC)
    assert not keys.refresh(now=100.0 + PATIENCE - 1)
    assert asked.times == 1
    assert keys.refresh(now=100.0 + PATIENCE)
    assert keys.find(key_id="e1", algorithm="ES256")
    assert not keys.find(key_id="r1", algorithm="RS256")


def test_while_the_issuer_is_away_the_keys_go_on():
    asked = Asked(published(RSA))
    keys = IssuerKeys(asked)
    keys.refresh(now=0.0)
    asked.answer = None
    for now in (20.0, 40.0, 1e6):
        assert not keys.refresh(now=now)
        assert keys.find(key_id="r1", algorithm="RS256")


def test_a_token_of_a_withdrawn_key_is_not_remembered(monkeypatch: pytest.MonkeyPatch):
    answers = [published(RSA), published(EC)]
    trusted = TrustedIssuer(CMS, lambda _: answers.pop(0))
    trusted.refresh()
    token = signed()
    trusted.verify(token, now=NOW)
    monkeypatch.setattr("pilotage.service.auth.oidc.discovery.PATIENCE", 0.0)
    trusted.refresh()
    with pytest.raises(UnknownKey):
        trusted.verify(token, now=NOW)


def test_a_key_that_cannot_be_read_does_not_hide_the_others():
    broken: Mapping[str, object] = {"kty": "RSA", "kid": "x", "n": "?", "e": "AQAB"}
    strange: Mapping[str, object] = {"kty": "XYZ"}
    others = [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": name} for name in ("none", "HS256", {})]
    every = (broken, strange, *others, *published(RSA).keys)
    keys = IssuerKeys(lambda: Published(keys=every, endpoints={}))
    keys.refresh(now=0.0)
    assert keys.find(key_id="r1", algorithm="RS256")


ADMIN = RoleRule(role=Role.VO_ADMIN, group="/cms/pilotage_admin")
SITE = RoleRule(role=Role.SITE_ADMIN, group="/cms/T1_IT", site="LCG.CNAF.it")
PRODUCTION = RoleRule(role=Role.USER, group="/cms/production", owner_group="cms_prod")
ROOT = RoleRule(role=Role.OPERATOR, subject="root-1")
FACTORY = RoleRule(role=Role.DIRECTOR, scope="pilotage.director", site="LCG.CNAF.it")
RULED = replace(CMS, rules=(ROOT, ADMIN, SITE, FACTORY, PRODUCTION, *issuer.rules_of_vo("cms")))


def test_groups_and_scopes_and_subjects_become_roles_in_the_order_of_the_rules():
    groups = ["/cms", "/cms/T1_IT", "/cms/pilotage_admin", "/cms/production"]
    found = issuer.callers(
        RULED, {"sub": "root-1", "wlcg.groups": groups, "scope": "openid pilotage.director"}
    )
    assert [caller.role for caller in found] == [
        Role.OPERATOR,
        Role.VO_ADMIN,
        Role.SITE_ADMIN,
        Role.DIRECTOR,
        Role.USER,
        Role.USER,
    ]
    assert found[2].sites == {"LCG.CNAF.it"}
    assert [caller.group for caller in found[-2:]] == ["cms_prod", "cms_user"]


def test_capabilities_go_before_groups_and_give_no_more_than_they_say():
    said = {"sub": "ada", "wlcg.groups": ["/cms/pilotage_admin", "/cms/production"]}
    [caller] = issuer.callers(RULED, {**said, "scope": "openid compute.read compute.create storage.read:/"})
    assert caller.role is Role.USER
    assert caller.capabilities == {Capability.READ, Capability.CREATE}
    assert caller.group == "cms_prod"


def test_capabilities_of_an_issuer_for_no_one_vo_say_nothing():
    many = replace(CMS, vo=None, rules=(replace(ADMIN, vo="cms"),))
    assert issuer.callers(many, {"sub": "ada", "scope": "compute.create"}) == ()


def test_one_person_is_one_subject_whoever_signed_the_token():
    [caller] = issuer.callers(replace(CMS, user_claim="preferred_username"), _person("ada"))
    assert caller == grant(role="user", vo="cms", user="ada").caller


def test_a_person_without_the_name_that_is_wanted_is_nobody():
    with pytest.raises(InvalidRequest, match="preferred_username"):
        issuer.callers(replace(CMS, user_claim="preferred_username"), _person(None))


def _person(name: str | None) -> dict[str, object]:
    return {"sub": "4f1e", "preferred_username": name, "wlcg.groups": ["/cms"]}


@pytest.mark.parametrize("algorithm", ["ES384", "ES512"])
def test_a_key_of_another_curve_than_the_algorithm_is_not_the_one_that_signed(algorithm: str):
    other = ECKey.generate_key({"ES384": "P-384", "ES512": "P-521"}[algorithm], {"kid": "e1"})
    with pytest.raises(UnknownKey):
        trusting(EC).verify(signed(other, algorithm), now=NOW)


def test_a_token_that_is_longer_than_ours_may_be_of_an_issuer():
    groups = [f"/cms/group-number-{number}" for number in range(350)]
    text = signed(**{"wlcg.groups": ["/cms", *groups]})
    assert 8192 < len(text) < 16384
    with pytest.raises(UnknownKey):
        Tokens(KeyRing(signing=generate())).verify(text, now=NOW)
    assert trusting(RSA).verify(text, now=NOW).caller.role is Role.USER


@pytest.mark.parametrize(
    "url", ["https://a\0b", "http://else.example.org/", "ftp://x", "http://127.0.0.1/", "http://localhost/"]
)
def test_an_address_that_is_none_or_not_safe_is_not_asked(url: str):
    with pytest.raises(IssuerAway, match="jwks_uri"):
        discovery.endpoint(CMS, {"jwks_uri": url}, "jwks_uri")


def test_an_issuer_on_this_machine_may_be_elsewhere_on_it():
    here = replace(CMS, url="http://localhost:1/")
    assert discovery.endpoint(here, {"jwks_uri": "http://127.0.0.1:2/keys"}, "jwks_uri")


def test_authorities_that_cannot_be_read_are_told_and_break_nothing(tmp_path: Path):
    trusted = TrustedIssuer(replace(CMS, authorities=tmp_path / "gone.pem"))
    trusted.refresh()
    with pytest.raises(IssuerAway, match=r"gone\.pem cannot be read"):
        discovery.client(trusted.issuer)
