import pytest

from requirements.errors import InvalidInput
from requirements.nodes.node_attributes import parse_node_attributes


def test_values_may_be_of_any_kind_several_at_once_or_absent() -> None:
    nodes = parse_node_attributes({"Tag": [["A", "B"], "C", None, 4, 4.5, True], "RAM": "unknown"})
    assert nodes.options("tag") == (("A", "B"), "C", None, 4, 4.5, True)
    assert nodes.options("ram") is None
    assert "TAG" in nodes
    assert "Model" not in nodes


def test_a_value_that_is_listed_twice_counts_once() -> None:
    assert parse_node_attributes({"N": [1, 1, True, 1.0, "1"]}).options("N") == (1, True, 1.0, "1")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (["Model"], "allowed is {Name: [values], unknown or advertised}"),
        (
            {"Model": "P4"},
            "N/Model: 'P4', allowed is a list of the values that its nodes may have, unknown or advertised",
        ),
        ({"Model": {}}, "N/Model: {}, allowed is a list"),
        ({"Model": []}, "N/Model: the list is empty"),
        ({"Model": [{"a": 1}]}, "N/Model[0]: a record"),
        ({"Model": [float("nan")]}, "N/Model[0]: nan is not a number"),
        ({"Model": list(range(1001))}, "N/Model: 1001 values, allowed are 1000"),
        ({"Model": ["a"], "MODEL": ["b"]}, "N/MODEL: named twice, the other time as Model"),
        ({" ": ["a"]}, "is not a name"),
        ({3: ["a"]}, "3 is not a name"),
        ({"a\0": ["a"]}, "contains the character NUL"),
    ],
)
def test_what_is_no_declaration_is_refused_with_its_place(raw: object, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_node_attributes(raw, "N")
    assert message in str(error.value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_node_attributes({"Model": [], "RAM": 5, "Good": [1]})
    assert len(error.value.problems) == 2
