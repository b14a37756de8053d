from typing import Any

import pytest

from cs_config import validate
from cs_config.editing import patch
from cs_config.editing.patch import BulkEdit
from requirements.errors import InvalidInput

CONFIG = validate.parse("""\
Resources:
  Sites:
    LCG.A.org:
      SoftwareTag: [v5, v6]
      Country: DE
      CEs:
        ce1: {Queues: {long: {MaxRAM: 8000}, short: {MaxRAM: 2000, VOs: {cms: {SoftwareTag: [c1]}}}}}
    LCG.B.org:
      Country: FR
      VOs: {cms: {SoftwareTag: v6}}
      CEs: {ce2: {Tag: [x], Queues: {all: {MaxRAM: 4000}}}}
    OSG.C.org:
      SoftwareTag: [v7]
Operations:
  Defaults: {JobDescription: {Memory: {type: number, resource: MaxRAM}}}
""")
SITES, AT_A = "Resources/Sites", "Resources/Sites/LCG.A.org/CEs/ce1/Queues"


def expand(pattern: str, value: Any, operator: str = "=", where: Any = "") -> dict[str, object]:
    return patch.expand_edits(CONFIG, [BulkEdit(pattern=pattern, value=value, operator=operator)], where)


def test_an_addition_starts_from_what_the_vo_gets_there() -> None:
    assert expand(f"{SITES}/*/VOs/cms/SoftwareTag", "v7", "+=") == {
        f"{SITES}/LCG.A.org/VOs/cms/SoftwareTag": ["v5", "v6", "v7"],
        f"{SITES}/LCG.B.org/VOs/cms/SoftwareTag": ["v6", "v7"],
        f"{SITES}/OSG.C.org/VOs/cms/SoftwareTag": ["v7"],
    }
    assert expand(f"{AT_A}/*/VOs/cms/SoftwareTag", ["v7", "c1"], "+=") == {
        f"{AT_A}/long/VOs/cms/SoftwareTag": ["v5", "v6", "v7", "c1"],
        f"{AT_A}/short/VOs/cms/SoftwareTag": ["c1", "v7"],
    }


def test_sets_that_unite_over_the_levels_get_the_new_value_only() -> None:
    assert expand(f"{SITES}/LCG.B.org/CEs/*/Queues/*/Tag", "y", "+=") == {
        f"{SITES}/LCG.B.org/CEs/ce2/Queues/all/Tag": ["y"]
    }


def test_what_has_the_value_already_is_left_out() -> None:
    assert expand(f"{SITES}/*/SoftwareTag", ["v7"]) == {
        f"{SITES}/LCG.A.org/SoftwareTag": ["v7"],
        f"{SITES}/LCG.B.org/SoftwareTag": ["v7"],
    }
    assert expand(f"{SITES}/OSG.C.org/SoftwareTag", "v7", "+=") == {}


def test_several_edits_of_one_list_add_up() -> None:
    words = [("+=", "v7"), ("+=", "v8"), ("-=", "v5")]
    edits = [BulkEdit(pattern=f"{SITES}/*.A.org/SoftwareTag", value=v, operator=by) for by, v in words]
    assert patch.expand_edits(CONFIG, edits) == {f"{SITES}/LCG.A.org/SoftwareTag": ["v6", "v7", "v8"]}


def test_values_are_taken_away_only_where_they_are_written() -> None:
    assert expand(f"{SITES}/*/SoftwareTag", "v6", "-=") == {f"{SITES}/LCG.A.org/SoftwareTag": ["v5"]}


@pytest.mark.parametrize(
    "where", [{"Memory": 3000}, "other.MaxRAM >= 3000", {"MaxRAM": [4000, 8000]}], ids=str
)
def test_a_condition_is_about_the_effective_parameters_of_the_node(where: object) -> None:
    found = expand(f"{SITES}/*/CEs/*/Queues/*/NumberOfProcessors", 8, where=where)
    assert sorted(found) == [
        f"{AT_A}/long/NumberOfProcessors",
        f"{SITES}/LCG.B.org/CEs/ce2/Queues/all/NumberOfProcessors",
    ]
    assert list(expand(f"{SITES}/L*/MaxRAM", 1, where={"Country": "fr"})) == [f"{SITES}/LCG.B.org/MaxRAM"]


SPELLED = validate.parse("""\
Resources:
  Sites:
    LCG.A.org:
      tag: [a, b]
      Flag: true
      Number: 4000.0
      VOs: {CMS: {Soft: own}}
      CEs: {ce: {Tag: [x], RequiredTag: [r], NodeAttributes: {OS: [el8, null]}, Queues: {q: {}}}}
Operations:
  Defaults: {JobDescription: {Extra: [Note]}}
  cms: {JobScheduling: {HoldTime: 600, RescheduleDelays: null}}
""")


def expand_spelled(pattern: str, value: Any, operator: str = "+=") -> dict[str, object]:
    return patch.expand_edits(SPELLED, [BulkEdit(pattern=pattern, value=value, operator=operator)])


def test_names_are_those_of_the_tree_in_any_case_of_letters() -> None:
    assert expand_spelled(f"{SITES}/*/Tag", "c") == {f"{SITES}/LCG.A.org/tag": ["a", "b", "c"]}
    assert expand_spelled(f"{SITES}/*/Tag", "a", "-=") == {f"{SITES}/LCG.A.org/tag": ["b"]}
    assert expand_spelled("resources/sites/*/vos/cms/soft", "s") == {
        f"{SITES}/LCG.A.org/VOs/CMS/Soft": ["own", "s"]
    }


def test_a_vo_keeps_the_tags_of_its_level_since_its_own_take_their_place() -> None:
    ce = f"{SITES}/LCG.A.org/CEs/ce"
    assert expand_spelled(f"{ce}/VOs/cms/Tag", "y") == {f"{ce}/VOs/cms/Tag": ["x", "y"]}
    assert expand_spelled(f"{ce}/VOs/cms/RequiredTag", "y") == {f"{ce}/VOs/cms/RequiredTag": ["r", "y"]}


def test_an_addition_to_the_options_of_nodes_starts_from_the_inherited_ones() -> None:
    queue = f"{SITES}/LCG.A.org/CEs/ce/Queues/q"
    assert expand_spelled(f"{queue}/NodeAttributes/OS", "el9") == {
        f"{queue}/NodeAttributes/OS": ["el8", None, "el9"]
    }


def test_an_addition_to_an_option_starts_from_the_value_in_force() -> None:
    chain = "Operations/cms/JobPath/Chain"
    assert expand_spelled("Operations/cms/JobDescription/Extra", "Mine") == {
        "Operations/cms/JobDescription/Extra": ["Note", "Mine"]
    }
    assert expand_spelled(chain, "Mine") == {
        chain: ["JobSanity", "InputData", "Requirements", "JobScheduling", "Mine"]
    }
    delays = "Operations/cms/JobScheduling/RescheduleDelays"
    assert expand_spelled(delays, 900) == {delays: [60, 180, 300, 600, 900]}
    assert expand_spelled("Registry/Groups/cms_user/Users", "ada") == {
        "Registry/Groups/cms_user/Users": ["ada"]
    }


@pytest.mark.parametrize(("name", "value"), [("Flag", 1), ("Number", 4000)])
def test_a_value_of_another_type_is_another_value(name: str, value: object) -> None:
    path = f"{SITES}/LCG.A.org/{name}"
    assert repr(expand_spelled(f"{SITES}/*/{name}", value, "=")) == repr({path: value})
    assert expand_spelled(f"{SITES}/*/{name}", value)[path] == [
        patch.find_entry(SPELLED.tree, path.split("/")),
        value,
    ]


def test_a_temporary_value_is_set_again_as_it_is() -> None:
    path = f"{SITES}/OSG.C.org/SoftwareTag"
    edits = [BulkEdit(pattern=f"{SITES}/*/SoftwareTag", value="v7", operator="+=")]
    assert path not in patch.expand_edits(CONFIG, edits)
    assert patch.expand_edits(CONFIG, edits, temporary=[path])[path] == ["v7"]
    node = f"{SITES}/LCG.B.org/CEs/ce2/Queues/all"
    again = [BulkEdit(pattern=f"{SITES}/*.B.org/CEs/ce2/Queues/all", value={"MaxRAM": 4000})]
    assert patch.expand_edits(CONFIG, again) == {}
    assert [*patch.expand_edits(CONFIG, again, temporary=[f"{node}/MaxRAM"])] == [node]


@pytest.mark.parametrize(
    ("pattern", "operator", "where", "said"),
    [
        (f"{SITES}/XY*/MaxRAM", "=", "", "there is no such place"),
        (f"{SITES}/*/MaxRAM", "=", {"Country": "XX"}, "no such place that fulfils the condition"),
        (f"{SITES}/*/CEs", "+=", "", "is a section"),
        ("Operations/Defaults/Limits/Jobs", "=", {"Country": "DE"}, "a condition is for sites"),
        (f"{SITES}/*/MaxRAM", "=", "other.Country ==", "where"),
    ],
)
def test_what_cannot_be_meant_is_refused(pattern: str, operator: str, where: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        expand(pattern, 1, operator, where)
