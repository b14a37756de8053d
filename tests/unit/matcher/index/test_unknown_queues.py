"""Thousands of names of queues that do not exist cost a few searches for those that are meant."""

import difflib
from typing import Any

import pytest

from cs_config import validate
from cs_config.errors import QueueNotFound
from matcher.index import place_pools
from requirements import errors
from requirements.errors import MOST_HINTS

QUEUES = ", ".join(f"q{number}: {{}}" for number in range(30))
CONFIG = validate.parse(f"Resources: {{Sites: {{A.B.ch: {{CEs: {{ce: {{Queues: {{{QUEUES}}}}}}}}}}}}}")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With how many names each unknown one was compared."""
    found: list[int] = []

    def counting(word: str, known: Any, **more: Any) -> list[str]:
        found.append(len(known))
        return difflib.get_close_matches(word, known, **more)

    monkeypatch.setattr(errors, "get_close_matches", counting)
    return found


def test_only_if_all_queues_are_unknown_it_is_an_error() -> None:
    with pytest.raises(QueueNotFound):
        place_pools.find_queues(["x/y/z", "rubbish"], CONFIG)
    assert place_pools.find_queues([], CONFIG) == ({}, [])


def test_hints_are_looked_for_as_long_as_they_are_few(compared: list[int]) -> None:
    names = ["A.B.ch/ce/q1", "A.B.ch/ce/qq7", *(f"A.B.ch/ce/none{number}" for number in range(10_000)), "a b"]
    known, unknown = place_pools.find_queues(names, CONFIG)
    assert list(known) == ["A.B.ch/ce/q1"]
    assert [str(each.name) for each in unknown] == names[1:]
    assert unknown[0].suggestion == "A.B.ch/ce/q7"
    assert len(compared) <= MOST_HINTS
    assert sum(compared) <= MOST_HINTS * 30
