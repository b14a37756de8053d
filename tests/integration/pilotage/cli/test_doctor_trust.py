"""What the doctor says of the service's certificate, and of the issuers that it trusts."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from examples.servers.certificates import Authority
from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Finding, Health
from pilotage.cli.settings import Settings
from pilotage.service.services import utc_now
from tests.support.servers.token_issuer import TokenIssuer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(authority: Authority) -> Iterator[TokenIssuer]:
    issuer = TokenIssuer(*authority.sign("issuer"))
    issuer.start()
    yield issuer
    issuer.stop()


def of_certificate(authority: Authority, home: Path, *, later: timedelta = timedelta()) -> Finding:
    certificate, key = authority.sign("service", days=15)
    chosen = settings.load({"home": home, "tls_certificate": certificate, "tls_key": key}, {})
    (finding,) = doctor.check_certificate(chosen, datetime.now(UTC) + later)
    return finding


@pytest.mark.parametrize(
    ("later", "health", "said"),
    [
        (timedelta(), Health.GOOD, "good until"),
        (timedelta(days=2), Health.WARNING, "is over in 12 days"),
        (timedelta(days=15), Health.BAD, "CN=service.* is over since"),
        (timedelta(days=-2), Health.BAD, "is not good before"),
    ],
)
def test_a_certificate_is_told_of_before_it_is_over(
    authority: Authority, tmp_path: Path, later: timedelta, health: Health, said: str
):
    finding = of_certificate(authority, tmp_path, later=later)
    assert (finding.health, bool(re.search(said, finding.message))) == (health, True), finding


def test_a_chain_is_good_as_long_as_the_first_of_it_that_ends(authority: Authority, tmp_path: Path):
    (certificate, key), (shorter, _) = authority.sign("service"), authority.sign("between", days=1)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + shorter.read_bytes())
    chosen = settings.load({"home": tmp_path, "tls_certificate": both, "tls_key": key}, {})
    (finding,) = doctor.check_certificate(chosen, datetime.now(UTC))
    assert finding.health is Health.WARNING
    assert "between" in finding.message


def test_a_certificate_without_its_key_is_bad_and_a_key_for_all_is_too(authority: Authority, tmp_path: Path):
    certificate, _ = authority.sign("service")
    other = tmp_path / "other.key"
    other.write_bytes(authority.sign("other")[1].read_bytes())
    other.chmod(0o644)
    chosen = settings.load({"home": tmp_path, "tls_certificate": certificate, "tls_key": other}, {})
    (finding,) = doctor.check_certificate(chosen, datetime.now(UTC))
    assert finding.health is Health.BAD
    assert "other.key" in finding.message
    told = {each.subject: each for each in doctor.check_files(chosen)}
    assert told["other.key"].health is Health.BAD
    other.chmod(0o640)
    told = {each.subject: each for each in doctor.check_files(chosen)}
    assert told["other.key"].health is Health.GOOD


def test_without_certificate_and_issuers_nothing_is_said(tmp_path: Path):
    chosen, now = settings.load({"home": tmp_path}, {}), datetime.now(UTC)
    assert [*doctor.check_certificate(chosen, now), *doctor.check_issuers(chosen, utc_now)] == []


def trusting(issuer: TokenIssuer, authority: Authority, home: Path, **changed: object) -> Settings:
    said = {"url": issuer.url, "audience": "us", "vo": "cms", "name": "cms"}
    about = {**said, "authorities": authority.certificate, **changed}
    return settings.load({"home": home, "issuers": [about]}, {})


def of_issuer(chosen: Settings, *, later: timedelta = timedelta()) -> Finding:
    (finding,) = doctor.check_issuers(chosen, lambda: utc_now() + later)
    return finding


def test_an_issuer_that_answers_is_good(issuer: TokenIssuer, authority: Authority, tmp_path: Path):
    finding = of_issuer(trusting(issuer, authority, tmp_path))
    assert (finding.subject, finding.health) == ("issuer cms", Health.GOOD)
    assert "keys: 1" in finding.message


def test_clocks_that_differ_more_than_is_borne_are_told(
    issuer: TokenIssuer, authority: Authority, tmp_path: Path
):
    chosen = trusting(issuer, authority, tmp_path)
    for later, said in ((timedelta(minutes=2), "s behind ours"), (-timedelta(minutes=2), "s ahead of ours")):
        finding = of_issuer(chosen, later=later)
        assert finding.health is Health.BAD
        assert said in finding.message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"authorities": None}, "CERTIFICATE_VERIFY_FAILED"),
        ({"authorities": "/gone.pem"}, "cannot be read"),
        ({"url": "https://localhost:1"}, "does not answer"),
        ({"sign_in": {"client_id": "us"}}, "does not state its authorization_endpoint"),
    ],
)
def test_an_issuer_that_is_away_or_lacks_something_is_bad(
    issuer: TokenIssuer, authority: Authority, tmp_path: Path, changed: dict[str, object], said: str
):
    finding = of_issuer(trusting(issuer, authority, tmp_path, **changed))
    assert finding.health is Health.BAD
    assert said in finding.message


def test_an_issuer_none_of_whose_keys_can_be_used_is_bad(
    issuer: TokenIssuer, authority: Authority, tmp_path: Path
):
    with issuer.publishing({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}):
        finding = of_issuer(trusting(issuer, authority, tmp_path))
    assert finding.health is Health.BAD
    assert "none of the keys" in finding.message
