"""Expressions over two sides."""

import pytest

from requirements.classad import match_expression
from requirements.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("Memory < 5", True),
        ("MY.Memory < 5 && self.memory < 5", True),
        ("TARGET.Memory < 5", False),
        ("other.Memory > MY.Memory", True),
        ("Owner =?= undefined", True),  # a bare name is never the other's
        ('target.OWNER == "ada"', True),
        ("memory + TARGET.memory == 11", True),
    ],
)
def test_both_sides_may_have_the_same_name(text: str, holds: bool) -> None:
    assert (
        match_expression.parse_match_expression(text).is_true({"Memory": 3}, {"Memory": 8, "Owner": "Ada"})
        is holds
    )


def test_it_is_known_whether_the_other_side_matters() -> None:
    assert match_expression.parse_match_expression("A < 1 || TARGET.B").asks_other
    assert not match_expression.parse_match_expression("A < 1 || MY.B").asks_other


def test_a_number_is_a_number_only() -> None:
    own = {"A": 1, "B": 2.5, "C": "3", "D": True}
    texts = ("A + B", "C", "D", "A / 0", "NoSuch", "5")
    assert [match_expression.number(text, own, "CurMatches") for text in texts] == [
        3.5,
        None,
        None,
        None,
        None,
        5,
    ]


@pytest.mark.parametrize("text", ['real("nan")', 'real("inf")', "A + 1"])
def test_what_nobody_can_reckon_with_is_no_number(text: str) -> None:
    assert match_expression.number(text, {"A": 2**53 - 1}, "CurMatches") is None


@pytest.mark.parametrize("text", ["a <", "time() > 5", "TARGET.a.b", "0x10 < a"])
def test_what_may_not_be_evaluated_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="Requirements"):
        match_expression.parse_match_expression(text)
