from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.editing import patch
from cs_config.errors import ConfigError, EditConflict, PathNotFound
from cs_config.source import diff
from cs_config.source.diff import ABSENT
from requirements.errors import InvalidRequest
from requirements.values import fold

BASE: dict[str, Any] = {"Resources": {"Sites": {"A": {"MaxRAM": 1, "CEs": {"c": {"X": 1}}}}}}


def edited(base: Any, current: Any, values: dict[str, object], removed: tuple[str, ...] = ()) -> Any:
    asked = patch.respell_edits(base, patch.read_edits(values, removed))
    return patch.apply_edits(base, current, asked, versions=(1, 2))


def site(**entries: object) -> dict[str, Any]:
    return {"Resources": {"Sites": {"A": entries}}}


def test_edits_of_other_paths_that_came_meanwhile_stay():
    current = site(MaxRAM=2, CEs={"c": {"X": 1}})
    assert edited(BASE, current, {"Resources/Sites/A/CEs/c/X": 5}) == site(MaxRAM=2, CEs={"c": {"X": 5}})
    assert BASE["Resources"]["Sites"]["A"]["CEs"]["c"] == {"X": 1}


def test_the_same_path_changed_by_others_is_a_conflict_with_the_difference():
    with pytest.raises(EditConflict, match="Resources/Sites/A/MaxRAM") as caught:
        edited(BASE, site(MaxRAM=2, CEs={}), {"Resources/Sites/A/MaxRAM": 3})
    assert caught.value.details == {
        "expected": 1,
        "current": 2,
        "conflicts": [{"path": "Resources/Sites/A/MaxRAM", "change": "changed", "before": 1, "after": 2}],
    }


def test_both_wanting_the_same_is_no_conflict():
    current = site(MaxRAM=2, CEs={})
    assert edited(BASE, current, {"Resources/Sites/A/MaxRAM": 2}) == current
    gone = site(CEs={})
    assert edited(BASE, gone, {}, ("Resources/Sites/A/MaxRAM",)) == gone


def test_a_section_that_went_meanwhile_does_not_come_back_by_an_edit_inside_it():
    with pytest.raises(EditConflict) as caught:
        edited(BASE, site(MaxRAM=1), {"Resources/Sites/A/CEs/c/New": 3})
    [conflict] = caught.value.conflicts
    assert (conflict.path, conflict.after) == ("Resources/Sites/A/CEs", ABSENT)


def test_a_change_inside_a_section_that_is_replaced_is_a_conflict():
    current = site(MaxRAM=1, CEs={"c": {"X": 2}})
    with pytest.raises(EditConflict, match="Resources/Sites/A/CEs"):
        edited(BASE, current, {"Resources/Sites/A/CEs": {}})


def test_names_are_found_in_any_case_and_stay_as_they_are_spelled():
    assert edited(BASE, BASE, {"/resources/sites/a/maxram": 3})["Resources"]["Sites"]["A"]["MaxRAM"] == 3


def test_the_last_value_of_a_vo_takes_the_section_with_it():
    base = site(VOs={"cms": {"MaxRAM": 1}})
    assert edited(base, base, {}, ("Resources/Sites/A/VOs/cms",)) == site()
    assert edited(base, base, {}, ("Resources/Sites/A/VOs/cms/MaxRAM",)) == site()


def test_what_is_not_there_cannot_be_removed():
    with pytest.raises(PathNotFound, match="did you mean Resources/Sites/A/MaxRAM"):
        edited(BASE, BASE, {}, ("Resources/Sites/A/MaxRAMM",))


def test_nothing_stands_below_a_value():
    with pytest.raises(ConfigError, match="Resources/Sites/A/MaxRAM is a value, 1"):
        edited(BASE, BASE, {"Resources/Sites/A/MaxRAM/x": 1})


@pytest.mark.parametrize(
    ("values", "removed"),
    [
        ({}, ()),
        ({"": 1}, ()),
        ({"a//b": 1}, ()),
        ({"a/b": 1, "A/b/c": 2}, ()),
        ({"a": 1}, ("a",)),
        ({"a": 1, "/a": 2}, ()),
    ],
)
def test_edits_that_say_nothing_or_two_things_are_refused(values, removed):
    with pytest.raises(InvalidRequest):
        patch.read_edits(values, removed)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=12,
)
SECTIONS = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


@given(SECTIONS, SECTIONS)
def test_the_differences_made_as_edits_make_one_tree_of_the_other(before, after):
    found = diff.compare(before, after)
    values, removed = patch.edits_from_differences(found)
    assert bool(found) == (not diff.is_equal(before, after))
    if found:
        assert diff.is_equal(edited(before, before, values, tuple(removed)), after)


def test_many_edits_of_a_large_section_read_and_copy_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"A": {f"old{number}": {"type": "text"} for number in range(200)}}
    edits = patch.read_edits({f"A/NEW{number}/type": "text" for number in range(200)})
    folded = Counter[str]()

    def count(name: str) -> str:
        folded[name] += 1
        return fold(name)

    monkeypatch.setattr(patch, "fold", count)
    found = patch.apply_edits(tree, tree, patch.respell_edits(tree, edits), versions=(1, 1))
    assert found == {"A": {**tree["A"], **{f"NEW{number}": {"type": "text"} for number in range(200)}}}
    assert max(folded.values()) == 1
    assert len(tree["A"]) == 200
    assert patch.respell_edits(tree, patch.read_edits({"a/OLD7/type": 1}))[0].names == ("A", "old7", "type")


@pytest.mark.parametrize("lists", [False, True])
def test_an_edit_is_no_deeper_than_a_file_may_be(lists: bool) -> None:
    deep: object = 1
    for _ in range(2000):
        deep = [deep] if lists else {"a": deep}
    for values, removed in (({"a/" * 2000 + "b": 1}, ()), ({"a": deep}, ()), ({}, ("a/" * 2000 + "b",))):
        with pytest.raises(InvalidRequest, match="nested more than 20 deep"):
            patch.read_edits(values, removed)
    assert patch.read_edits({"a/" * 18 + "b": {"c": 1}})
