"""Answers that are given again."""

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from cs_config.cache import CountCache, RowCounts

WORTH, ROWS_A_SECOND, LONGEST = CountCache.WORTH, CountCache.ROWS_A_SECOND, CountCache.LONGEST
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def asked():
    """Asks a question, answered with how often it was really counted."""
    counted = {
        rows: count(1)
        for rows in (
            WORTH - 1,
            WORTH,
            100 * LONGEST.seconds * ROWS_A_SECOND,
        )
    }
    remembered = CountCache[tuple[int, int]](lambda answer: answer[0])

    def ask(rows: int, *, after: timedelta) -> int:
        return remembered.get(rows, lambda: (rows, next(counted[rows])), now=NOW + after)[1]

    return ask


def test_what_is_quick_to_count_is_counted_each_time(asked):
    assert [asked(WORTH - 1, after=timedelta()) for _ in range(2)] == [1, 2]


def test_a_long_count_is_told_again_for_a_time_that_grows_with_it(asked):
    life = WORTH // ROWS_A_SECOND * SECOND
    told = [asked(WORTH, after=after) for after in (timedelta(), life - SECOND, life, life)]
    assert told == [1, 1, 2, 2]


def test_nothing_is_older_than_a_minute(asked):
    most = 100 * LONGEST.seconds * ROWS_A_SECOND
    assert [asked(most, after=after) for after in (timedelta(), LONGEST - SECOND, LONGEST)] == [1, 1, 2]


def test_a_clock_that_goes_back_counts_anew(asked):
    assert [asked(WORTH, after=after) for after in (timedelta(), -SECOND)] == [1, 2]


def test_questions_are_told_apart(asked):
    assert [
        asked(WORTH, after=timedelta()),
        asked(100 * LONGEST.seconds * ROWS_A_SECOND, after=timedelta()),
    ]
    assert asked(WORTH, after=SECOND) == 1


def test_keys_whose_rows_took_long_are_counted_again_only_after_their_time():
    rows, asked = {1: WORTH, 2: 1, 3: 0}, list[list[int]]()
    counts = RowCounts()

    def read(*keys: int, after: timedelta) -> dict[int, int]:
        def count_rows(missing):
            asked.append(sorted(missing))
            return {key: rows[key] for key in missing if rows[key]}

        return dict(counts.get(keys, count_rows, now=NOW + after))

    life = WORTH // ROWS_A_SECOND * SECOND
    assert read(1, 2, 3, after=timedelta()) == {1: WORTH, 2: 1}
    assert read(1, 2, after=life - SECOND) == {1: WORTH, 2: 1}
    rows[2], rows[4] = 5, 7
    assert read(1, 2, 4, after=life - SECOND) == {1: WORTH, 2: 1, 4: 7}, "a new key is counted, alone"
    assert read(2, 4, after=life + SECOND) == {2: 5, 4: 7}
    assert read(2, after=life + SECOND) == {2: 5}, "few rows are counted each time"
    assert asked == [[1, 2, 3], [4], [2, 4], [2]]
