import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from requirements.errors import InvalidInput
from requirements.values import (
    MAX_INTEGER,
    MAX_MARKS,
    as_number,
    as_value,
    fold,
    format_value,
    key,
    lookup,
    normal,
    to_nfc,
)

SCALARS = (
    st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Intel XEON", "intel xeon"), ("Straße", "STRASSE"), ("caf\u00e9", "CAFE\u0301"), ("ΣΑΣ", "σας")],
)
def test_names_compare_without_case_and_composition(one: str, other: str) -> None:
    assert fold(one) == fold(other)


#: Letters that are composed, decomposed, of several marks, and marks in an order that is not canonical.
LETTERS = ["a", "é", "e\u0301", "\u0344", "\U0001d160", "\u0301", "\u0316", "\u0345", "가", "\u1100\u1161"]


@given(st.lists(st.sampled_from(LETTERS), max_size=MAX_MARKS).map("".join))
@example("\u0301\u0316" * (MAX_MARKS // 2))
def test_letters_with_marks_are_normalized(text: str) -> None:
    assert to_nfc(text) == unicodedata.normalize("NFC", text)
    assert fold(text) == fold(unicodedata.normalize("NFD", text))


@pytest.mark.parametrize(
    "text", ["\u0301\u0316" * MAX_MARKS, "a" + "\u0344" * (MAX_MARKS + 1), "\u0301" * 99 + "\u0316"]
)
def test_more_marks_than_any_script_has_are_not_sorted(text: str) -> None:
    assert not unicodedata.is_normalized("NFC", text)
    assert to_nfc(text) == text
    assert fold(text) == text
    assert fold(text + " A") == fold(fold(text + " A"))


@given(SCALARS | st.lists(SCALARS).map(tuple))
def test_values_that_are_values_stay_as_they_are(value: Any) -> None:
    assert as_value(value, "x") == value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (float("nan"), "x: nan is not a number to compare with"),
        (float("-inf"), "x: -inf is not a number to compare with"),
        (2**53, "x: 9007199254740992 is out of range"),
        (-(2**53), "x: -9007199254740992 is out of range"),
        (None, "x: no value, allowed is text, a number, a boolean or a list of these"),
        ({}, "x: a record, allowed is"),
        ([1, [2]], "x[1]: a list inside a list, allowed is"),
        (b"a", "x: b'a' (bytes; as text it needs quotes), allowed is"),
        ("a\0b", r"x: 'a\x00b' contains the character NUL"),
        ("\ud800", r"x: '\ud800' is not valid Unicode text"),
    ],
)
def test_what_is_no_value_is_refused_with_the_reason(raw: object, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        as_value(raw, "x")
    assert str(refused.value).startswith(message)


def test_an_enormous_integer_is_refused_without_being_written_out() -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        as_value(10**5000, "x")


def test_every_bad_item_of_a_list_is_named() -> None:
    with pytest.raises(InvalidInput) as refused:
        as_value([None, 1, {}], "x")
    assert [problem.path for problem in refused.value.problems] == ["x[0]", "x[2]"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("4000", 4000), (" 4e3 ", 4000), ("4000.0", 4000), ("-1.5", -1.5), ("+2", 2), (".5", 0.5), ("1.", 1)],
)
def test_text_that_is_a_number_is_read_as_one(text: str, number: float) -> None:
    assert as_number(text) == number


@pytest.mark.parametrize("text", ["", "many", "0x10", "1_000", "inf", "nan", "1e999", "4000 MB", "١٢"])
def test_other_text_is_no_number(text: str) -> None:
    assert as_number(text) == text


def test_the_boolean_true_is_not_the_number_one() -> None:
    assert key(True) != key(1)
    assert key(1) == key(1.0)
    assert normal((True, 1, 1.0)) == (True, 1)


def test_a_list_of_one_is_its_value() -> None:
    assert normal(("A", "a")) == "a"


@given(st.lists(SCALARS))
def test_the_normal_form_does_not_depend_on_order_or_repetition(items: list[Any]) -> None:
    assert normal(tuple(items)) == normal(tuple(reversed(items + items)))


@given(SCALARS | st.lists(SCALARS).map(tuple))
def test_the_normal_form_is_its_own_normal_form(value: Any) -> None:
    assert normal(normal(value)) == normal(value)


def test_lookup_finds_a_name_in_any_case() -> None:
    assert lookup({"MaxRAM": 5}, "maxram") == 5
    assert lookup({"MaxRAM": 5}, "Memory") is None


def test_values_are_shown_as_a_person_writes_them() -> None:
    assert format_value((True, 4000.0, 1.5, "Intel Xeon")) == "true, 4000, 1.5, Intel Xeon"
