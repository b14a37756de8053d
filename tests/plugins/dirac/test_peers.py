import pytest

from cs_config import validate
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
