"""Names that resemble a misspelt one are suggested to those who may see them."""

import pytest

from cs_config import validate
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.queries import unknown_values

CONFIG = validate.parse("""
Registry:
  VO: {cms: {}, atlas: {}}
  Users: {ada: {}, alice_atlas: {}}
  Groups:
    cms_user: {VO: cms, Users: [ada]}
    atlas_secret_higgs: {VO: atlas, Users: [alice_atlas]}
""")


@pytest.mark.parametrize(
    ("role", "owners", "groups"),
    [
        (Role.USER, {"ann"}, set()),
        (Role.VO_ADMIN, {"ann", "ada"}, {"cms_user"}),
        (Role.OPERATOR, {"ann", "ada", "alice_atlas"}, {"cms_user", "atlas_secret_higgs"}),
    ],
)
def test_names_of_other_vos_are_not_told(role: Role, owners: set[str], groups: set[str]) -> None:
    caller = Caller(subject="ann", role=role, vos=frozenset({"cms"}), user="ann")
    assert set(unknown_values._list_configured(CONFIG, caller, "owner")) == owners
    assert set(unknown_values._list_configured(CONFIG, caller, "owner_group")) == groups
