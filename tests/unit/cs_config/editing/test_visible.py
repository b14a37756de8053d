from cs_config import validate
from cs_config.editing import permissions
from cs_config.editing.permissions import Rights

CONFIG = validate.parse(
    """
Resources:
  Sites:
    LCG.A.org:
      VOs: {cms: {A: 1}, dune: {A: 2}}
      CEs:
        ce1:
          VOs: {DUNE: {B: 1}}
          Queues: {long: {VOs: {cms: {C: 1}}, MaxRAM: 5}}
Operations:
  Defaults: {JobScheduling: {HoldTime: 5}}
  dune: {JobScheduling: {HoldTime: 6}}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms, Users: [ada]}
    dune_user: {VO: dune, Users: [zoe]}
    nobodys: {Users: [x]}
""",
    "test.yaml",
)


def test_a_vo_sees_what_is_everybodys_and_its_own():
    tree = permissions.visible_tree(CONFIG, Rights(sees=frozenset({"dune"})))
    site = tree["Resources"]["Sites"]["LCG.A.org"]
    assert site["VOs"] == {"dune": {"A": 2}}
    assert site["CEs"]["ce1"]["VOs"] == {"DUNE": {"B": 1}}
    assert site["CEs"]["ce1"]["Queues"]["long"] == {"MaxRAM": 5}  # not even that somebody has values there
    assert set(tree["Operations"]) == {"Defaults", "dune"}
    assert tree["Registry"] == {"VO": {"dune": {}}, "Groups": {"dune_user": {"VO": "dune", "Users": ["zoe"]}}}


def test_somebody_without_a_vo_sees_nothing_of_any():
    tree = permissions.visible_tree(CONFIG, Rights())
    assert "dune" not in str(tree)
    assert "cms" not in str(tree)
    assert "ada" not in str(tree)


def test_the_configuration_itself_is_left_as_it_is():
    permissions.visible_tree(CONFIG, Rights())
    assert "dune" in str(CONFIG.tree)


def test_a_site_admin_sees_the_whole_of_his_site_and_no_other_vos_elsewhere():
    tree = permissions.visible_tree(CONFIG, Rights(sites=frozenset({"LCG.A.org"})))
    assert tree["Resources"]["Sites"]["LCG.A.org"]["VOs"] == {"cms": {"A": 1}, "dune": {"A": 2}}
    assert set(tree["Operations"]) == {"Defaults"}
    assert tree["Registry"] == {"VO": {}, "Groups": {}}
