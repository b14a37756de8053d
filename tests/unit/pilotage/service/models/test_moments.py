"""Points in time of filters: a time, a date, or how long ago."""

from datetime import UTC, datetime, timedelta

import pytest

from pilotage.service.models.jobs import parse_moment
from pilotage.service.pages.jobs import FilledFilter
from requirements.errors import InvalidRequest

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-28", datetime(2026, 3, 28, tzinfo=UTC)),
        ("20260328", datetime(2026, 3, 28, tzinfo=UTC)),
        ("2026-03-28 12:00", NOW),
        ("2026-03-28T14:00:00+02:00", NOW),
        ("2026-03-28T12:00:00Z", NOW),
        ("90s", NOW - timedelta(seconds=90)),
        ("30m", NOW - timedelta(minutes=30)),
        ("24h", NOW - timedelta(hours=24)),
        (" 7d ", NOW - timedelta(days=7)),
        ("12w", NOW - timedelta(weeks=12)),
    ],
)
def test_a_moment_is_a_time_a_date_or_how_long_ago(text: str, moment: datetime) -> None:
    assert parse_moment("from", text, NOW) == moment


@pytest.mark.parametrize(
    "text", ["yesterday", "", "7", "d", "-1d", "1.5h", "1y", "999999999w", "9" * 30 + "d", "1774010112345"]
)
def test_the_error_names_the_field_what_was_seen_and_what_is_allowed(text: str) -> None:
    allowed = "2026-03-28, 2026-03-28T12:00:00Z, or how long ago: 24h, 7d"
    with pytest.raises(InvalidRequest) as refused:
        parse_moment("submitted_since", text, NOW)
    assert str(refused.value) == f"submitted_since: {text!r} is not a time: {allowed}"


def test_a_filled_in_age_remains_one_in_links_and_saved_views() -> None:
    assert FilledFilter.model_validate({"submitted_since": "7d"}).address == "/jobs?submitted_since=7d"
