from pathlib import Path

import pytest

from pilotage.cli import settings, wiring
from pilotage.cli.settings import InvalidSettings
from pilotage.service.auth.callers import Role
from pilotage.service.auth.oidc.issuer import DIRACX_USER, Issuer, RoleRule, callers

WHOLE = """
issuers:
  - url: https://cms-auth.example.org/
    vo: CMS
    audience: https://pilotage.example.org
    roles:
      - {role: vo_admin, group: /cms/pilotage_admin}
      - {role: site_admin, group: /cms/T1, site: LCG.CERN.ch}
      - {role: operator, subject: 4f1e}
"""


def load(home: Path, text: str) -> settings.Settings:
    (home / settings.SETTINGS_FILE).write_text(text)
    return settings.load({"home": home}, {})


def test_an_issuer_is_described_in_the_settings(tmp_path: Path):
    [trusted] = wiring.trusted_issuers(load(tmp_path, WHOLE).issuers)
    assert (trusted.issuer.name, trusted.issuer.vo) == ("cms-auth.example.org", "cms")
    assert [rule.role for rule in trusted.issuer.rules] == [Role.VO_ADMIN, Role.SITE_ADMIN, Role.OPERATOR]


def test_without_roles_the_groups_of_the_vo_count(tmp_path: Path):
    said = load(tmp_path, WHOLE[: WHOLE.index("    roles")])
    [trusted] = wiring.trusted_issuers(said.issuers)
    assert {rule.group: rule.role for rule in trusted.issuer.rules} == {
        "/cms/pilotage_admin": Role.VO_ADMIN,
        "/cms": Role.USER,
    }


def test_a_variable_says_issuers_in_yaml(tmp_path: Path):
    said = '[{"url": "https://a.example.org", "audience": ["x"], "vo": "cms"}]'
    loaded = settings.load({"home": tmp_path}, {"PILOTAGE_ISSUERS": said})
    assert loaded.issuers[0].url == "https://a.example.org"
    with pytest.raises(InvalidSettings, match="PILOTAGE_ISSUERS"):
        settings.load({"home": tmp_path}, {"PILOTAGE_ISSUERS": "[: a"})


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("    audience: https://pilotage.example.org\n", "", r"issuers/0/audience"),
        ("role: vo_admin", "role: king", r"issuers/0/roles/0/role"),
        ("role: vo_admin", "role: pilot", r"issuers/0/roles/0/role"),
        ("group: /cms/pilotage_admin", "grup: x", r"issuers/0/roles/0/grup"),
        (", group: /cms/pilotage_admin", "", r"exactly one of group, scope and subject"),
        ("https://cms", "http://cms", r"is not an https address"),
        (", site: LCG.CERN.ch", "", r"roles/site: a token for the role site_admin needs it"),
        ("    vo: CMS\n", "", r"roles/vo: a token for the role vo_admin needs it"),
        (
            "    vo: CMS\n",
            "    vo: CMS\n    authorities: /nowhere/ca.pem\n",
            r"/nowhere/ca.pem cannot be read",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tmp_path: Path, before: str, after: str, message: str):
    assert before in WHOLE
    with pytest.raises(InvalidSettings, match=message):
        wiring.trusted_issuers(load(tmp_path, WHOLE.replace(before, after)).issuers)


def test_two_issuers_that_nobody_could_tell_apart_are_refused(tmp_path: Path):
    twice = WHOLE + WHOLE.replace("issuers:\n", "")
    with pytest.raises(InvalidSettings, match="two have the url"):
        wiring.trusted_issuers(load(tmp_path, twice).issuers)


def test_an_issuer_of_diracx_needs_neither_an_audience_nor_a_vo(tmp_path: Path):
    text = "issuers:\n  - {url: https://diracx.example.org, kind: diracx}\n"
    [trusted] = wiring.trusted_issuers(load(tmp_path, text).issuers)
    assert (trusted.issuer.is_diracx, trusted.issuer.audiences, trusted.issuer.rules) == (
        True,
        frozenset(),
        (),
    )
    admins = text.replace("diracx}", "diracx, roles: [{role: vo_admin, group: /lhcb/lhcb_admin}]}")
    assert wiring.trusted_issuers(load(tmp_path, admins).issuers)
    with pytest.raises(InvalidSettings, match="issuers/0/audience"):
        load(tmp_path, text.replace("diracx}", "diracx, audience: x}"))


@pytest.mark.parametrize(
    ("changed", "roles"),
    [
        ({}, [("user", "lhcb", "lhcb_user")]),
        ({"dirac_properties": []}, []),
        ({"dirac_group": "lhcb_admin"}, [("vo_admin", "lhcb", ""), ("user", "lhcb", "lhcb_admin")]),
        ({"dirac_group": "lhcb_admin", "vo": "dune"}, [("user", "dune", "lhcb_admin")]),
        ({"scope": "compute.cancel"}, [("user", "lhcb", "lhcb_user")]),
    ],
)
def test_tokens_of_diracx_have_the_roles_of_their_own_vo(
    changed: dict[str, object], roles: list[tuple[str, str, str]]
):
    claims = {
        "sub": "lhcb:1",
        "vo": "lhcb",
        "dirac_group": "lhcb_user",
        "dirac_properties": ["NormalUser"],
        "preferred_username": "ada",
        **changed,
    }
    rules = (RoleRule(role=Role.VO_ADMIN, group="/lhcb/lhcb_admin", vo=None),)
    issuer = Issuer(
        name="x", url="https://x", audiences=frozenset(), is_diracx=True, user_claim=DIRACX_USER, rules=rules
    )
    found = [(str(each.role), *each.vos, each.group) for each in callers(issuer, claims)]
    assert [(role, vo, group if role == "user" else "") for role, vo, group in found] == roles
