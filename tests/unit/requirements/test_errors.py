"""Texts about errors that people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements.errors import InvalidRequest, require_text, shorten

REMEDY = "lower CPUTime from 500000 to 172800 s and leave out CPUModel"


def test_a_long_text_is_cut_between_words():
    assert shorten(REMEDY, most=40) == "lower CPUTime from … leave out CPUModel (60 characters)"
    assert shorten(REMEDY, most=len(REMEDY)) == REMEDY


def test_a_word_that_is_nearly_all_of_it_is_cut():
    assert shorten("one/" * 40, most=40) == f"{'one/' * 5} … {'one/' * 5} (160 characters)"


@given(st.lists(st.text("abc,", min_size=1, max_size=9), min_size=1).map(" ".join), st.integers(40, 60))
def test_of_short_words_none_is_cut_and_no_more_is_left_than_is_allowed(text: str, most: int):
    begin, mark, rest = shorten(text, most=most).partition(" … ")
    if not mark:
        assert begin == text
        return
    end = rest.rpartition(" (")[0]
    assert len(begin) + len(end) <= most
    words = text.split(" ")
    assert begin.split(" ") == words[: begin.count(" ") + 1]
    assert end.split(" ") == words[-end.count(" ") - 1 :]


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u00a0"])
def test_a_reason_has_more_than_blanks(blank: str):
    assert require_text("reason", f"{blank}the disk{blank}") == "the disk"
    with pytest.raises(InvalidRequest, match="reason: is blank, state a reason"):
        require_text("reason", blank)
