import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration

QUEUE = QueueAddress(site="S", ce="C", queue="Q")


def config(site: str = "", ce: str = "", queue: str = "") -> Configuration:
    """A tree of one queue; what each level says, as YAML in braces without them."""
    below = f"Queues: {{Q: {{{queue}}}}}"
    ces = f"CEs: {{C: {{{', '.join(part for part in (ce, below) if part)}}}}}"
    return validate.parse(
        f"Resources: {{Sites: {{S: {{{', '.join(part for part in (site, ces) if part)}}}}}}}", "r.yaml"
    )


def values(tree: Configuration, vo: str = "cms") -> dict[str, object]:
    return dict(tree.values(QUEUE, vo))


def test_a_queue_has_what_its_site_and_ce_say() -> None:
    assert values(config(site="A: 1", ce="B: 2", queue="C: 3")) == {"A": 1, "B": 2, "C": 3}


def test_the_deeper_level_overrides() -> None:
    assert values(config(site="MaxRAM: 1", ce="MaxRAM: 2", queue="MaxRAM: 3")) == {"MaxRAM": 3}
    assert values(config(site="MaxRAM: 1", ce="MaxRAM: 2")) == {"MaxRAM": 2}


def test_names_override_whatever_their_case() -> None:
    assert values(config(site="maxRAM: 1", queue="MaxRAM: 2")) == {"MaxRAM": 2}


def test_at_one_level_the_value_of_the_vo_wins() -> None:
    tree = config(ce="MaxRAM: 1, VOs: {cms: {MaxRAM: 2}}")
    assert values(tree, "cms") == {"MaxRAM": 2}
    assert values(tree, "atlas") == {"MaxRAM": 1}


def test_the_vo_is_named_in_any_case() -> None:
    tree = config(ce="MaxRAM: 1, VOs: {CMS: {MaxRAM: 2}}")
    assert values(tree, "cms") == values(tree, "Cms") == {"MaxRAM": 2}


def test_a_plain_value_of_a_deeper_level_wins_over_the_vos_value_above() -> None:
    assert values(config(site="VOs: {cms: {MaxRAM: 1}}", queue="MaxRAM: 2")) == {"MaxRAM": 2}


def test_null_takes_away_what_is_inherited() -> None:
    assert values(config(site="MaxRAM: 1, A: 1", queue="MaxRAM: null")) == {"A": 1}
    assert values(config(site="MaxRAM: 1", ce="maxram: ", queue="MaxRAM: 2")) == {"MaxRAM": 2}


def test_null_for_a_vo_takes_away_for_that_vo_only() -> None:
    tree = config(site="MaxRAM: 1", ce="MaxRAM: 2, VOs: {cms: {MaxRAM: null}}")
    assert values(tree, "cms") == {}
    assert values(tree, "atlas") == {"MaxRAM": 2}


@pytest.mark.parametrize("name", ["Tag", "RequiredTag", "tag"])
def test_tags_of_the_levels_unite(name: str) -> None:
    tree = config(site=f"{name}: [a, b]", ce=f"{name}: c", queue=f"{name}: [B, d]")
    assert values(tree) == {name: ("a", "b", "c", "d")}


def test_a_tag_of_one_level_only_is_a_set_too() -> None:
    assert values(config(site="Tag: a")) == {"Tag": ("a",)}


def test_tags_of_a_vo_stand_for_the_plain_ones_of_their_level() -> None:
    tree = config(site="Tag: [a]", ce="Tag: [b], VOs: {cms: {Tag: [c]}}", queue="Tag: [d]")
    assert values(tree, "cms") == {"Tag": ("a", "c", "d")}
    assert values(tree, "atlas") == {"Tag": ("a", "b", "d")}


def test_null_takes_inherited_tags_away() -> None:
    assert values(config(site="Tag: [a]", ce="Tag: null", queue="Tag: [b]")) == {"Tag": ("b",)}


def test_every_parameter_knows_where_it_comes_from() -> None:
    text = """\
Resources:
  Sites:
    S:
      A: 1
      Tag: [x]
      CEs:
        C:
          B: 2
          VOs:
            cms:
              B: 3
          Queues:
            Q:
              Tag: [y]
"""
    found = validate.parse(text, "r.yaml").parameters(QUEUE, "cms")
    assert (found["A"].level, found["A"].path, found["A"].file, found["A"].line) == (
        "Site",
        "Resources/Sites/S/A",
        "r.yaml",
        4,
    )
    assert (found["B"].level, found["B"].path, found["B"].line) == (
        "CE VOs/cms",
        "Resources/Sites/S/CEs/C/VOs/cms/B",
        11,
    )
    assert (found["Tag"].level, found["Tag"].line) == ("Queue", 14)
    assert [(part.level, part.line) for part in found["Tag"].parts] == [("Site", 5), ("Queue", 14)]


def test_without_a_vo_list_everybody_may() -> None:
    assert config().usable(QUEUE, "anyone")


def test_the_nearest_vo_list_decides() -> None:
    tree = config(site="VO: [cms]", ce="VO: [atlas]")
    assert tree.usable(QUEUE, "atlas")
    assert not tree.usable(QUEUE, "cms")


def test_vo_lists_compare_without_case() -> None:
    tree = config(site="VO: [CMS]")
    assert tree.usable(QUEUE, "cms")
    assert tree.usable(QUEUE, "Cms")


def test_an_empty_vo_list_is_nobody() -> None:
    assert not config(site="VO: [cms]", queue="VO: []").usable(QUEUE, "cms")


def test_null_takes_the_vo_list_away() -> None:
    assert config(site="VO: [cms]", queue="VO: null").usable(QUEUE, "atlas")


@pytest.mark.parametrize("level", ["site", "ce", "queue"])
def test_disabled_at_any_level_is_disabled(level: str) -> None:
    said = {"site": "Enabled: true", "ce": "Enabled: true", "queue": "Enabled: true"} | {
        level: "Enabled: false"
    }
    assert not config(**said).usable(QUEUE, "cms")


def test_disabled_for_one_vo() -> None:
    tree = config(ce="VOs: {cms: {Enabled: false}}")
    assert not tree.usable(QUEUE, "cms")
    assert tree.usable(QUEUE, "atlas")


def test_a_disabled_queue_still_has_its_parameters() -> None:
    assert values(config(queue="Enabled: false, A: 1")) == {"Enabled": False, "A": 1}


def test_a_name_alone_is_a_queue() -> None:
    tree = validate.parse(
        "Resources:\n  Sites:\n    S:\n      CEs:\n        C:\n          Queues:\n            Q:\n", "r.yaml"
    )
    assert tree.addresses == (QUEUE,)


SAID = st.dictionaries(
    st.sampled_from(["MaxRAM", "Tag", "Own"]),
    st.none() | st.integers(0, 3).map(str),
    max_size=3,
)
LEVELS = st.lists(st.tuples(SAID, SAID), min_size=3, max_size=3)


def as_text(said: dict[str, str | None], own: dict[str, str | None]) -> str:
    """One level in YAML: `said` for everybody, `own` for cms."""

    def written(pairs: dict[str, str | None]) -> str:
        values = {
            name: value if value is None or name != "Tag" else f"t{value}" for name, value in pairs.items()
        }
        return ", ".join(f"{name}: {value or 'null'}" for name, value in values.items())

    return ", ".join(part for part in (written(said), f"VOs: {{cms: {{{written(own)}}}}}") if part)


@given(levels=LEVELS, vo=st.sampled_from(["cms", "atlas"]))
def test_the_rules_hold_for_any_levels(
    levels: list[tuple[dict[str, str | None], dict[str, str | None]]], vo: str
) -> None:
    site, ce, queue = (as_text(*level) for level in levels)
    expected: dict[str, object] = {}
    for said, own in levels:
        here = {**said, **own} if vo == "cms" else said
        for name, value in here.items():
            if value is None:
                expected.pop(name, None)
            elif name == "Tag":
                before = expected.get(name, ())
                assert isinstance(before, tuple)
                expected[name] = (*before, *(tag for tag in [f"t{value}"] if tag not in before))
            else:
                expected[name] = int(value)
    assert values(config(site, ce, queue), vo) == expected
