"""Long lists of sites and tags, which users write, are kept up to a number of bytes."""

from collections.abc import Callable
from typing import Any

import pytest

from matcher import rules
from requirements.kept import Kept


@pytest.mark.parametrize(
    ("function", "kept"),
    [(rules.fold_names, rules._fold_list), (rules.sort_tags, rules.sort_tags)],
    ids=["sites", "tags"],
)
@pytest.mark.parametrize(("lists", "length", "letters"), [(300, 1000, 10), (40_000, 8, 250)])
def test_lists_of_names_are_kept_up_to_their_bytes(
    function: Callable[[frozenset[str]], object], kept: Kept[Any, Any], lists: int, length: int, letters: int
) -> None:
    kept.cache_clear()
    for number in range(lists):
        names = frozenset(f"LCG.Site-{number}-{each}.{'x' * letters}" for each in range(length))
        found = function(names)
        assert 0 < kept.bytes <= kept.most
        assert found is function(names)
    assert kept.bytes > kept.most // 2
    kept.cache_clear()
