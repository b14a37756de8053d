"""Shares corrected by use: towards those who had less than was due, within bounds."""

from collections.abc import Mapping
from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.task_queues.shares import UsageSlice, correct_shares


def used(weight: float = 1, most: float = 3, **by: float) -> UsageSlice[str]:
    return UsageSlice(used=by, weight=weight, max_correction=most)


def correct(due: Mapping[str, float], *slices: UsageSlice[str], most: float = 5) -> Mapping[str, float]:
    return correct_shares(due, slices, max_correction=most)


def test_who_used_what_was_due_keeps_the_share() -> None:
    due = {"a": 750.0, "b": 250.0}
    assert correct(due, used(a=30, b=10)) == pytest.approx(due)


def test_who_used_too_much_gets_less_and_the_other_more() -> None:
    # Factors 0.5/0.8 and 0.5/0.2; together they have 1000 as before.
    found = correct({"a": 500.0, "b": 500.0}, used(a=8, b=2))
    assert found == pytest.approx({"a": 200, "b": 800})


def test_a_slice_corrects_within_its_bounds() -> None:
    found = correct({"a": 500.0, "b": 500.0}, used(a=99, b=1, most=2))
    assert found["b"] / found["a"] == pytest.approx(2 / (0.5 / 0.99))
    assert correct({"a": 500.0, "b": 500.0}, used(a=99, b=1, most=1)) == {"a": 500, "b": 500}


def test_who_used_nothing_gets_the_most_that_is_allowed() -> None:
    found = correct({"a": 500.0, "b": 500.0}, used(a=7))
    assert found["b"] / found["a"] == pytest.approx(3 / 0.5)


def test_slices_count_by_their_weights_and_all_together_within_a_bound() -> None:
    week, day = used(weight=3, most=10, a=1, b=9), used(weight=1, most=10, a=9, b=1)
    found = correct({"a": 50.0, "b": 50.0}, week, day, most=10)
    of_a, of_b = 0.75 * 5 + 0.25 * 5 / 9, 0.75 * 5 / 9 + 0.25 * 5
    assert found["a"] / found["b"] == pytest.approx(of_a / of_b)
    assert correct({"a": 50.0, "b": 50.0}, week, day, most=1) == {"a": 50, "b": 50}


def test_use_of_those_who_have_nothing_waiting_plays_no_part() -> None:
    due = {"a": 500.0, "b": 500.0}
    assert correct(due, used(a=8, b=2, c=1000)) == correct(due, used(a=8, b=2))


def test_a_slice_without_use_says_nothing() -> None:
    due = {"a": 500.0, "b": 100.0}
    assert correct(due) == due
    assert correct(due, used(), used(c=5)) == due
    assert correct(due, used(), used(a=8, b=2)) == correct(due, used(a=8, b=2))


def test_nobody_and_no_share_are_no_trouble() -> None:
    assert correct({}, used(a=1)) == {}
    assert correct({"a": 0.0, "b": 0.0}, used(a=1)) == {"a": 0, "b": 0}
    assert correct({"a": 0.0, "b": 100.0}, used(a=1)) == {"a": 0, "b": 100}


names = st.sampled_from("abcd")
amounts = st.floats(0.001, 1e9) | st.just(0.0)
slices = st.lists(
    st.builds(
        UsageSlice,
        used=st.dictionaries(names, amounts),
        weight=st.floats(0.001, 1000),
        max_correction=st.floats(1, 100),
    ),
    max_size=4,
)


@given(st.dictionaries(names, amounts), slices, st.floats(1, 100))
def test_corrections_only_move_shares_and_within_the_bound(
    due: dict[str, float], given_slices: list[UsageSlice[str]], most: float
) -> None:
    found = correct_shares(due, given_slices, max_correction=most)
    assert found.keys() == due.keys()
    assert fsum(found.values()) == pytest.approx(fsum(due.values()))
    factors = [found[each] / share for each, share in due.items() if share]
    if factors:
        assert max(factors) / min(factors) <= most**2 * (1 + 1e-9)


@given(st.dictionaries(names, st.floats(1, 1000), min_size=2), st.floats(1, 1000), st.floats(0, 1000))
def test_who_used_more_never_gets_more(due: dict[str, float], before: float, more: float) -> None:
    who, *others = due
    rest = dict.fromkeys(others, 100.0)
    less = correct(due, used(**rest, **{who: before}))
    found = correct(due, used(**rest, **{who: before + more}))
    assert found[who] <= less[who] * (1 + 1e-9)
