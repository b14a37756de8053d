import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.editing import patch
from cs_config.editing.patch import Edit
from cs_config.errors import ConfigError
from cs_config.source import diff, yaml_writer
from requirements.errors import InvalidRequest, Problem

TREE = {"Operations": {"cms": {"Pools": {"GraceTime": 5}, "JobPath": {"Steps": ["a"]}}}}
CMS = ("Operations", "cms")


def test_a_text_that_was_not_changed_edits_nothing():
    assert patch.edits_from_text(TREE, CMS, patch.section_text(TREE, CMS)) == ()


def test_each_value_that_is_another_is_one_edit_and_the_section_goes_with_an_empty_text():
    found = patch.edits_from_text(TREE, CMS, "Pools: {GraceTime: 6}\nLeases: {Time: 1}\n")
    assert {(each.path, repr(each.value)) for each in found} == {
        ("Operations/cms/Pools/GraceTime", "6"),
        ("Operations/cms/Leases", "{'Time': 1}"),
        ("Operations/cms/JobPath", "ABSENT"),
    }
    assert patch.edits_from_text(TREE, CMS, " \n") == (Edit(names=CMS, value=diff.ABSENT),)
    assert patch.edits_from_text(TREE, ("Operations", "dune"), "") == ()
    assert patch.edits_from_text(TREE, ("Operations", "dune"), "a: 1") == (
        Edit(names=("Operations", "dune"), value={"a": 1}),
    )


def test_what_cannot_be_read_is_told_with_the_line_of_the_text():
    with pytest.raises(ConfigError) as caught:
        patch.edits_from_text(TREE, CMS, "Pools:\n  GraceTime: 1\n  gracetime: 2\n")
    [problem] = caught.value.problems
    assert (problem.path, problem.line) == ("Operations/cms/Pools/gracetime", 3)


def test_problems_of_the_tree_get_the_lines_of_the_text():
    text = "Pools:\n  GraceTime: x\n"
    problems = [
        Problem(path="Operations/cms/Pools/GraceTime", message="is not a number", file="api", line=77),
        Problem(path="Operations/dune", message="elsewhere", line=78),
    ]
    found = [(each.path, each.line) for each in patch.with_lines(problems, CMS, text)]
    assert found == [("Operations/cms/Pools/GraceTime", 2), ("Operations/dune", None)]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.text(st.characters(min_codepoint=32, max_codepoint=126)),
)


@given(st.one_of(SCALARS, st.lists(SCALARS, max_size=4)))
def test_a_value_that_is_written_in_line_is_read_as_the_same(value: object):
    assert diff.is_equal(yaml_writer.read_value(yaml_writer.write_value(value), "p"), value)


@pytest.mark.parametrize("written", ["[1", "1\nb: 2", "{x: 1}}", "&a 1"])
def test_what_is_not_one_value_is_refused_with_its_path(written: str):
    with pytest.raises(InvalidRequest, match=r"Operations/x: .* is not a valid value"):
        yaml_writer.read_value(written, "Operations/x")
