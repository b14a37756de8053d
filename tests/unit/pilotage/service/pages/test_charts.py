from datetime import UTC, datetime, timedelta

import pytest

from pilotage.service.pages import accounting, charts
from taskqueue.accounting.report import TimeBucket

NOON = datetime(2026, 3, 28, 12, 30, tzinfo=UTC)


def test_bars_are_stacked_to_the_height_of_their_sum():
    drawn = charts.stacked(charts.largest({"a": [4.0, 0.0], "b": [4.0, 1.0]}), 2)
    assert [(bar.name, bar.step, bar.value) for bar in drawn.bars] == [("b", 0, 4), ("a", 0, 4), ("b", 1, 1)]
    below, above, last = drawn.bars
    assert above.y + above.height == pytest.approx(below.y, abs=0.02)
    assert below.height == pytest.approx(4 * last.height, abs=0.05)
    assert drawn.ticks[-1].value == 8
    assert below.y + below.height == pytest.approx(drawn.base, abs=0.02)


def test_what_is_not_among_the_largest_is_drawn_together():
    found = charts.largest({f"s{number:02}": [float(number)] for number in range(12)})
    assert [each.number for each in found] == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert (found[0].name, found[-1].name, found[-1].values) == ("s11", charts.OTHERS, [0 + 1 + 2 + 3])


def test_a_line_is_broken_where_nothing_is_known():
    series = [
        charts.PlotSeries(name="a", number=1, values=[50.0, 60.0, None, 70.0, 80.0, None, 90.0], total=1)
    ]
    drawn = charts.lines(series, 7, least_top=100)
    assert [len(points.split()) for _, points in drawn.lines] == [2, 2]
    assert [point.step for point in drawn.points] == [0, 1, 3, 4, 6]
    assert drawn.ticks[-1].value == 100


def test_nothing_at_all_has_axes():
    assert charts.stacked([], 3).ticks[-1].value == 1
    assert charts.lines([], 3, least_top=100).ticks[-1].value == 100


@pytest.mark.parametrize(
    ("length", "wanted", "expected"),
    [
        (timedelta(hours=24), None, TimeBucket.HOUR),
        (timedelta(days=7), None, TimeBucket.DAY),
        (timedelta(days=365), None, TimeBucket.MONTH),
        (timedelta(days=7), TimeBucket.HOUR, TimeBucket.HOUR),
        (timedelta(days=60), TimeBucket.HOUR, TimeBucket.DAY),
        (timedelta(days=2), TimeBucket.MONTH, TimeBucket.MONTH),
        (timedelta(days=2), TimeBucket.YEAR, TimeBucket.YEAR),
        (timedelta(days=9000), TimeBucket.HOUR, TimeBucket.MONTH),
    ],
)
def test_steps_make_a_picture(length: timedelta, wanted: TimeBucket | None, expected: TimeBucket):
    assert accounting.bucket_for(NOON - length, NOON, wanted) is expected


@pytest.mark.parametrize(
    ("bucket", "since", "expected"),
    [
        (TimeBucket.HOUR, NOON - timedelta(hours=1), ["2026-03-28T11", "2026-03-28T12"]),
        (TimeBucket.DAY, NOON - timedelta(days=1), ["2026-03-27T00", "2026-03-28T00"]),
        (
            TimeBucket.MONTH,
            NOON - timedelta(days=100),
            ["2025-12-01T00", "2026-01-01T00", "2026-02-01T00", "2026-03-01T00"],
        ),
        (TimeBucket.YEAR, NOON - timedelta(days=100), ["2025-01-01T00", "2026-01-01T00"]),
    ],
)
def test_steps_begin_where_their_bucket_does(bucket: TimeBucket, since: datetime, expected: list[str]):
    assert [f"{at:%Y-%m-%dT%H}" for at in accounting.begins(since, NOON, bucket)] == expected
