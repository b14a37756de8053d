from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilotage.service.pages import accounting, templating
from pilotage.service.queries.accounting import AccountingAnswer, AccountingRow
from taskqueue.accounting.report import TimeBucket

NOON = datetime(2026, 3, 28, 12, 30, tzinfo=UTC)


def answer(rows: list[dict[str, Any]], bucket: TimeBucket = TimeBucket.DAY) -> AccountingAnswer:
    """Rows of three days by VO."""
    empty = {"jobs": 0, "attempts": 0, "wall_seconds": 0, "core_seconds": 0, "cpu_seconds": 0}
    empty |= {"cpu_efficiency": None, "normalised_cpu_seconds": 0, "waited": {}}
    made = [AccountingRow.model_validate({**empty, **row}) for row in rows]
    return AccountingAnswer(since=NOON - timedelta(days=2), until=NOON, by=["vo"], bucket=bucket, rows=made)


def quantity(name: str) -> accounting.Quantity:
    return next(each for each in accounting.QUANTITIES if each.name == name)


def day(ago: int) -> datetime:
    return (NOON - timedelta(days=ago)).replace(hour=0, minute=0)


def test_sums_are_stacked_with_zeros_where_there_is_nothing():
    chart = accounting.draw(
        answer([{"at": day(2), "vo": "a", "jobs": 4}, {"at": day(0), "vo": "b", "jobs": 5}]),
        quantity("jobs"),
    )
    assert (chart.kind, chart.note) == ("bars", "jobs by day, UTC")
    assert chart.times == [day(2), day(1), day(0)]
    assert [(line.label, line.tone, line.values) for line in chart.lines] == [
        ("b", 1, [0, 0, 5]),
        ("a", 2, [4, 0, 0]),
    ]


def test_time_waited_is_by_cause():
    waited = {"a pilot": 7200.0, "": 0.0}
    chart = accounting.draw(answer([{"at": day(1), "vo": "a", "waited": waited}]), quantity("waited"))
    assert [(line.label, line.values) for line in chart.lines] == [("a pilot", [0, 2, 0])]
    assert chart.note == "hours by cause and day, UTC"


def test_an_efficiency_is_a_line_that_is_broken_where_nothing_is_known():
    rows = [
        {"at": day(2), "vo": "a", "cpu_efficiency": 0.5, "core_seconds": 10},
        {"at": day(0), "vo": "a", "cpu_efficiency": 0.7, "core_seconds": 10},
        {"at": day(1), "vo": "b", "cpu_efficiency": 0.9, "core_seconds": 30},
        {"at": day(1), "vo": "c", "core_seconds": 90},
    ]
    chart = accounting.draw(answer(rows), quantity("efficiency"))
    assert chart.kind == "line"
    assert [(line.label, line.values) for line in chart.lines] == [
        ("b", [None, 90, None]),
        ("a", [50, None, 70]),
    ]


def test_what_is_not_among_the_largest_is_drawn_together():
    found = templating.list_largest({f"s{number:02}": [float(number)] for number in range(12)})
    assert [each.tone for each in found] == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert (found[0].label, found[-1].label, found[-1].values) == ("s11", templating.OTHERS, [0 + 1 + 2 + 3])


def test_nothing_at_all_is_an_empty_chart():
    assert accounting.draw(answer([]), quantity("jobs")).is_empty


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
    assert [f"{at:%Y-%m-%dT%H}" for at in accounting.list_steps(since, NOON, bucket)] == expected


def test_statuses_have_the_colours_of_all_pages():
    rows = [{"at": day(0), "status": name, "jobs": 1} for name in ("Done", "Failed")]
    found = answer(rows).model_copy(update={"by": ["status"]})
    chart = accounting.draw(found, quantity("jobs"))
    assert {line.label: line.tone for line in chart.lines} == {"Done": "done", "Failed": "failed"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0139, "0\xa0s"),
        (9.96, "10\xa0s"),
        (43.81, "44\xa0s"),
        (3600, "1.0\xa0h"),
        (8_640_000, "2\u202f400.0\xa0h"),
    ],
)
def test_used_time_is_readable_at_any_size(seconds: float, text: str):
    assert templating.hours(seconds) == text
