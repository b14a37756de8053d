"""Values for statements, so many at a time."""

import pytest

from taskqueue import batches


def test_each_value_comes_once_sorted_and_no_statement_gets_more_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "MOST", 2)
    assert list(batches.of([5, 3, 1, 3, 2, 4])) == [[1, 2], [3, 4], [5]]
    assert list(batches.of(set[str]())) == []
