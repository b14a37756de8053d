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


OF_CMS = "MaxRAM: 1, VOs: {CMS: {MaxRAM: 2}}"
LESS_FOR_CMS = ("MaxRAM: 1", "MaxRAM: 2, VOs: {cms: {MaxRAM: null}}", "")
TAGS_OF_CMS = ("Tag: [a]", "Tag: [b], VOs: {cms: {Tag: [c]}}", "Tag: [d]")


@pytest.mark.parametrize(
    ("levels", "vo", "found"),
    [
        (("A: 1", "B: 2", "C: 3"), "cms", {"A": 1, "B": 2, "C": 3}),
        (("MaxRAM: 1", "MaxRAM: 2", "MaxRAM: 3"), "cms", {"MaxRAM": 3}),
        (("MaxRAM: 1", "MaxRAM: 2", ""), "cms", {"MaxRAM": 2}),
        (("maxRAM: 1", "", "MaxRAM: 2"), "cms", {"MaxRAM": 2}),
        (("", OF_CMS, ""), "cms", {"MaxRAM": 2}),
        (("", OF_CMS, ""), "Cms", {"MaxRAM": 2}),
        (("", OF_CMS, ""), "atlas", {"MaxRAM": 1}),
        (("VOs: {cms: {MaxRAM: 1}}", "", "MaxRAM: 2"), "cms", {"MaxRAM": 2}),
        (("MaxRAM: 1, A: 1", "", "MaxRAM: null"), "cms", {"A": 1}),
        (("MaxRAM: 1", "maxram: ", "MaxRAM: 2"), "cms", {"MaxRAM": 2}),
        (LESS_FOR_CMS, "cms", {}),
        (LESS_FOR_CMS, "atlas", {"MaxRAM": 2}),
        (("Tag: [a, b]", "Tag: c", "Tag: [B, d]"), "cms", {"Tag": ("a", "b", "c", "d")}),
        (("RequiredTag: a", "RequiredTag: c", ""), "cms", {"RequiredTag": ("a", "c")}),
        (("tag: [a]", "tag: [b]", ""), "cms", {"tag": ("a", "b")}),
        (("Tag: a", "", ""), "cms", {"Tag": ("a",)}),
        (TAGS_OF_CMS, "cms", {"Tag": ("a", "c", "d")}),
        (TAGS_OF_CMS, "atlas", {"Tag": ("a", "b", "d")}),
        (("Tag: [a]", "Tag: null", "Tag: [b]"), "cms", {"Tag": ("b",)}),
        (("", "", "Enabled: false, A: 1"), "cms", {"Enabled": False, "A": 1}),
    ],
)
def test_deeper_levels_override_and_those_of_the_vo_at_one_level(
    levels: tuple[str, str, str], vo: str, found: dict[str, object]
) -> None:
    assert values(config(*levels), vo) == found


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


@pytest.mark.parametrize(
    ("levels", "usable", "closed"),
    [
        (("", "", ""), ("anyone",), ()),
        (("VO: [cms]", "VO: [atlas]", ""), ("atlas",), ("cms",)),
        (("VO: [CMS]", "", ""), ("cms", "Cms"), ("atlas",)),
        (("VO: [cms]", "", "VO: []"), (), ("cms",)),
        (("VO: [cms]", "", "VO: null"), ("atlas",), ()),
        (("", "VOs: {cms: {Enabled: false}}", ""), ("atlas",), ("cms",)),
    ],
)
def test_the_nearest_vo_list_says_who_may_use_a_queue(
    levels: tuple[str, str, str], usable: tuple[str, ...], closed: tuple[str, ...]
) -> None:
    tree = config(*levels)
    assert {vo: tree.usable(QUEUE, vo) for vo in (*usable, *closed)} == {
        **dict.fromkeys(usable, True),
        **dict.fromkeys(closed, False),
    }


@pytest.mark.parametrize("level", ["site", "ce", "queue"])
def test_disabled_at_any_level_is_disabled(level: str) -> None:
    said = {"site": "Enabled: true", "ce": "Enabled: true", "queue": "Enabled: true"} | {
        level: "Enabled: false"
    }
    assert not config(**said).usable(QUEUE, "cms")


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
