from cs_config import validate, visible

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
    tree = visible.tree(CONFIG, {"dune"})
    site = tree["Resources"]["Sites"]["LCG.A.org"]
    assert site["VOs"] == {"dune": {"A": 2}}
    assert site["CEs"]["ce1"]["VOs"] == {"DUNE": {"B": 1}}
    assert site["CEs"]["ce1"]["Queues"]["long"] == {"VOs": {}, "MaxRAM": 5}
    assert set(tree["Operations"]) == {"Defaults", "dune"}
    assert tree["Registry"] == {"VO": {"dune": {}}, "Groups": {"dune_user": {"VO": "dune", "Users": ["zoe"]}}}


def test_somebody_without_a_vo_sees_nothing_of_any():
    tree = visible.tree(CONFIG, ())
    assert "dune" not in str(tree)
    assert "cms" not in str(tree)
    assert "ada" not in str(tree)


def test_the_configuration_itself_is_left_as_it_is():
    visible.tree(CONFIG, ())
    assert "dune" in str(CONFIG.tree)
