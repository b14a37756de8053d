import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cs_config import validate
from examples.servers.certificates import Authority, sign_proxy
from pilotage.plugins.dirac import peers
from pilotage.plugins.dirac.peers import Identity
from pilotage.service.auth.callers import Role
from pilotage.service.http_errors import NotAuthenticated

CONFIG = validate.parse(
    """
Registry:
  VO: {lhcb: {DefaultGroup: lhcb_user}, cms: {}, dune: {DefaultGroup: dune_user}}
  Users: {ada: {DN: /CN=ada}, bea: {DN: /CN=bea}, cid: {DN: /CN=cid}}
  Hosts: {door: {DN: /CN=door, Properties: [NormalUser, JobAdministrator]}}
  Groups:
    lhcb_user: {VO: lhcb, Users: [ada]}
    dune_user: {VO: dune, Users: [ada, bea]}
    dune_admin: {VO: dune, Users: [bea], Properties: [NormalUser, JobAdministrator]}
    cms_user: {VO: cms, Users: [cid]}
""",
    version=1,
)


def identify(user: str, group: str | None = None) -> Identity:
    return Identity(dn=f"/CN={user}", group=group, is_limited=False, fingerprint="a" * 64)


def group_of(user: str) -> str:
    return peers.find_peer(identify(user), None, CONFIG, address="10.0.0.1").group


def test_a_proxy_without_a_group_has_the_default_group_of_its_user():
    assert group_of("bea") == "dune_user"
    with pytest.raises(NotAuthenticated, match="names no group, and it has no default one"):
        group_of("cid")


def test_a_proxy_without_a_group_has_none_of_several_default_ones():
    """Admins of each of these VOs put users into its group: none takes over those of the others."""
    with pytest.raises(NotAuthenticated, match="names no group, and one of dune_user, lhcb_user is needed"):
        group_of("ada")


def test_users_without_a_group_count_for_their_only_vo():
    """A VO would otherwise have as many places at work as users with plain certificates."""
    assert peers.find_vo(identify("bea"), CONFIG.registry) == "dune"
    assert peers.find_vo(identify("cid"), CONFIG.registry) == "cms"
    assert peers.find_vo(identify("ada", "lhcb_user"), CONFIG.registry) == "lhcb"
    assert peers.find_vo(identify("ada"), CONFIG.registry) == "/CN=ada"
    assert peers.find_vo(identify("door"), CONFIG.registry) == "/CN=door"


def test_own_jobs_are_changed_as_a_user_and_all_others_as_an_admin_of_their_vo():
    peer = peers.find_peer(identify("bea", "dune_admin"), None, CONFIG, address="10.0.0.1")
    own, other = (peer.changer_of(vo="dune", owner=owner) for owner in ("bea", "ada"))
    assert (own.role, own.each) == (Role.USER, (own,))
    assert (other.role, other.vos) == (Role.VO_ADMIN, {"dune"})
    host = peers.find_peer(identify("door"), None, CONFIG, address="10.0.0.1")
    assert host.is_host
    for owner in ("ada", "door"):
        caller = host.changer_of(vo="lhcb", owner=owner)
        assert (caller.role, caller.vos) == (Role.VO_ADMIN, {"lhcb"})


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    return Authority(tmp_path_factory.mktemp("authority")).sign("ada")


def identify_proxy(signed: tuple[Path, Path], **wishes: Any) -> Identity | None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048).public_key()
    chain = sign_proxy(*signed, key, **wishes)
    return peers.identify([ssl.PEM_cert_to_DER_cert(each.decode()) for each in chain])


def test_a_proxy_inherits_all_rights_or_is_limited(signed: tuple[Path, Path]):
    whole, limited = identify_proxy(signed), identify_proxy(signed, limited=True)
    assert whole is not None
    assert limited is not None
    assert (whole.is_limited, limited.is_limited) == (False, True)


@pytest.mark.parametrize("policy", ["1.3.6.1.5.5.7.21.2", "1.3.6.1.4.1.3536.1.1.1.9.1", "1.2.3.4"])
def test_a_proxy_with_another_policy_is_nobody(signed: tuple[Path, Path], policy: str):
    """An independent one has none of its issuer's rights, and others cannot be understood."""
    with pytest.raises(NotAuthenticated, match="neither `inherit all` nor `limited`"):
        identify_proxy(signed, policy=policy)


@pytest.mark.parametrize(
    "rights", ["", "30", "3005", "300c300a06082b0601050507150100", "0200", "3080", "30820001", "30023000"]
)
def test_what_is_no_policy_is_unreadable(rights: str):
    with pytest.raises(ValueError, match="the extension of the proxy"):
        peers._read_policy(bytes.fromhex(rights))


def test_a_policy_may_bound_the_number_of_further_proxies():
    text = "300f020101300a06082b06010505071501"
    assert peers._read_policy(bytes.fromhex(text)) == bytes.fromhex("2b06010505071501")
