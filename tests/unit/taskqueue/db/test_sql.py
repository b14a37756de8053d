"""Values for statements, so many at a time."""

import pytest

from taskqueue.db import sql


def test_each_value_comes_once_sorted_and_no_statement_gets_more_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sql, "BATCH_SIZE", 2)
    assert list(sql.split_batches([5, 3, 1, 3, 2, 4])) == [[1, 2], [3, 4], [5]]
    assert list(sql.split_batches(set[str]())) == []
