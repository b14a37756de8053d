"""Long lists of sites and tags, which users write, are kept up to a number of bytes."""

from collections.abc import Callable
from typing import Any

import pytest

from matcher import rules
from requirements.kept import Kept


@pytest.mark.parametrize(
    ("function", "kept"),
    [(rules.fold_names, rules._fold_many), (rules.sort_tags, rules._sort_many)],
    ids=["sites", "tags"],
)
def test_long_lists_of_names_are_kept_up_to_their_bytes(
    function: Callable[[frozenset[str]], object], kept: Kept[Any, Any]
) -> None:
    kept.cache_clear()
    for number in range(300):
        names = frozenset(f"LCG.Site-{number}-{each}.org" for each in range(1000))
        found = function(names)
        assert 0 < kept.bytes <= kept.most
        assert found is function(names)
    assert kept.bytes > kept.most // 2
    kept.cache_clear()
