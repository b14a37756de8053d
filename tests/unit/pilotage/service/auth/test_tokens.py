from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from joserfc import jwt as joserfc_jwt
from joserfc.jwk import ECKey

from cs_config.tree.address import QueueAddress
from pilotage.service.auth import keys
from pilotage.service.auth.callers import Capability, Role, grant
from pilotage.service.auth.keys import KeyRing
from pilotage.service.auth.tokens import Tokens
from pilotage.service.http_errors import ClockBehind, NotAuthenticated
from requirements.errors import InvalidRequest

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
KEY = keys.generate()
NAMED = {"kid": KEY.key_id}
TOKENS = Tokens(KeyRing(signing=KEY))


def mint(**wishes: object) -> str:
    return TOKENS.mint(grant(**wishes), now=NOW)[0]  # type: ignore[arg-type]


def test_a_token_says_who_its_bearer_is():
    token = TOKENS.verify(mint(role="user", vo="CMS", user="ada"), now=NOW)
    assert token.caller.role is Role.USER
    assert token.caller.vos == {"cms"}
    assert token.caller.user == "ada"
    assert token.caller.group == "cms_user"
    assert token.expires_at == NOW + timedelta(days=1)


def test_two_tokens_of_one_bearer_have_one_subject_and_two_ids():
    first, second = (TOKENS.verify(mint(role="user", vo="cms", user="ada"), now=NOW) for _ in range(2))
    assert first.caller.subject == second.caller.subject
    assert first.token_id != second.token_id


def test_subjects_of_different_bearers_differ():
    wishes = [
        {"role": "user", "vo": "cms", "user": "ada"},
        {"role": "user", "vo": "dune", "user": "ada"},
        {"role": "vo_admin", "vo": "cms", "user": "ada"},
        {"role": "operator", "user": "ada"},
        {"role": "pilot", "vo": "cms"},
        {"role": "pilot", "vo": "cms"},
        {"role": "director", "vo": "cms,dune", "site": "A"},
        {"role": "director", "vo": "cms,dune", "site": "B"},
        {"role": "gateway", "vo": "cms", "site": "A"},
    ]
    subjects = [grant(**each).caller.subject for each in wishes]  # type: ignore[arg-type]
    assert len(set(subjects)) == len(subjects)


def test_a_pilot_token_carries_stamp_and_queue():
    caller = TOKENS.verify(mint(role="pilot", vo="cms", queue="S.x/ce/q", stamp="p1"), now=NOW).caller
    assert caller.queue == QueueAddress(site="S.x", ce="ce", queue="q")
    assert (caller.stamp, caller.subject) == ("p1", "pilot:p1")


@pytest.mark.parametrize("some", [frozenset(), frozenset({Capability.READ})])
def test_a_token_keeps_the_limits_of_its_bearer(some: frozenset[Capability]):
    whole = grant(role="user", vo="cms", user="ada")
    limited = replace(whole, caller=replace(whole.caller, capabilities=some))
    assert TOKENS.verify(TOKENS.mint(limited, now=NOW)[0], now=NOW).caller == limited.caller


def test_an_expired_token_is_refused_to_the_second():
    token = mint(role="operator", ttl=60)
    TOKENS.verify(token, now=NOW + timedelta(seconds=59))
    with pytest.raises(NotAuthenticated, match="expired"):
        TOKENS.verify(token, now=NOW + timedelta(seconds=60))


def test_a_token_from_the_future_is_refused_but_a_small_difference_of_clocks_is_not():
    token = mint(role="operator")
    TOKENS.verify(token, now=NOW - timedelta(seconds=20))
    with pytest.raises(ClockBehind, match="valid in 300 s: compare the clocks"):
        TOKENS.verify(token, now=NOW - timedelta(minutes=5))


def test_a_token_of_another_installation_is_refused():
    with pytest.raises(NotAuthenticated):
        Tokens(KeyRing(signing=keys.generate())).verify(mint(role="operator"), now=NOW)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a.b.c", "....", "ey.ey.ey", "\x00", "é" * 50, "x" * 100_000, "eyJhbGciOiJub25lIn0.e30."],
)
def test_what_is_no_token_is_refused(text: str):
    with pytest.raises(NotAuthenticated):
        TOKENS.verify(text, now=NOW)


def test_a_token_without_signature_is_refused():
    claims = {"iss": "pilotage", "sub": "x", "role": "operator", "jti": "1", "iat": 0, "exp": 2**33}
    with pytest.raises(NotAuthenticated):
        TOKENS.verify(jwt.encode(claims, key="", algorithm="none", headers=NAMED), now=NOW)


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused():
    secret = sha256(_public_pem()).digest()
    claims = {"iss": "pilotage", "sub": "x", "role": "operator", "jti": "1", "iat": 0, "exp": 2**33}
    with pytest.raises(NotAuthenticated):
        TOKENS.verify(jwt.encode(claims, key=secret, algorithm="HS256", headers=NAMED), now=NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"role": "king"},
        {"role": None},
        {"exp": "soon"},
        {"exp": 10**30},
        {"iat": 177469999999999200},
        {"vos": "cms"},
        {"queue": "nowhere"},
        {"iss": "else"},
        {"sub": 7},
    ],
)
def test_strange_claims_are_refused_even_if_they_are_signed(change: dict[str, object]):
    claims = {"iss": "pilotage", "sub": "x", "role": "operator", "jti": "1", "iat": 0, "exp": 2**33}
    signed = jwt.encode({**claims, **change}, KEY.private, algorithm="ES256", headers=NAMED)
    with pytest.raises(NotAuthenticated):
        TOKENS.verify(signed, now=NOW)


def test_a_changed_token_is_refused():
    header, payload, signature = mint(role="user", vo="cms", user="ada").split(".")
    other = mint(role="operator").split(".")[1]
    for text in (f"{header}.{other}.{signature}", f"{header}.{payload}.{signature[:-4]}AAAA"):
        with pytest.raises(NotAuthenticated):
            TOKENS.verify(text, now=NOW)


def test_another_library_reads_our_tokens():
    key = ECKey.import_key(_public_pem())
    token = joserfc_jwt.decode(mint(role="operator"), key, algorithms=["ES256"])
    assert token.claims["role"] == "operator"
    assert token.header["kid"] == KEY.key_id


def _public_pem() -> bytes:
    return KEY.public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.mark.parametrize(
    ("wishes", "path"),
    [
        ({"role": "usr", "vo": "cms"}, "role"),
        ({"role": "user", "vo": "cms"}, "user"),
        ({"role": "user", "user": "ada"}, "vo"),
        ({"role": "user", "user": "ada", "vo": "cms,dune"}, "vo"),
        ({"role": "pilot"}, "vo"),
        ({"role": "gateway", "vo": "cms"}, "site"),
        ({"role": "site_admin"}, "site"),
        ({"role": "pilot", "vo": "cms", "ttl": 5 * 86400}, "ttl"),
        ({"role": "operator", "ttl": 0}, "ttl"),
        ({"role": "operator", "ttl": float("nan")}, "ttl"),
        ({"role": "operator", "ttl": -5}, "ttl"),
        ({"role": "operator", "user": "a\0b"}, "user"),
        ({"role": "user", "vo": "c m s", "user": "ada"}, "'c m s'"),
        ({"role": "user", "vo": "cms", "user": "ada", "queue": "A/b/c"}, "queue"),
        ({"role": "pilot", "vo": "cms", "queue": "A/b"}, "Queue"),
    ],
)
def test_what_makes_no_sense_is_not_minted(wishes: dict[str, object], path: str):
    with pytest.raises(InvalidRequest) as refused:
        grant(**wishes)  # type: ignore[arg-type]
    assert path in {problem.path for problem in refused.value.problems}


def test_a_life_that_is_too_long_is_told_as_it_was_asked_for():
    with pytest.raises(InvalidRequest, match="9999999 s, allowed are 1 to 345600 s for the role pilot"):
        grant(role="pilot", vo="cms", ttl=9999999)


def test_a_wrong_role_gets_a_suggestion():
    with pytest.raises(InvalidRequest, match="did you mean operator"):
        grant(role="operater")
