"""Numbers in filters of jobs: several, and ranges of them."""

import pytest
from pydantic import ValidationError

from pilotage.service.models import MOST
from pilotage.service.models.jobs import JobFilter


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("137", [137]),
        (137, [137]),
        ("1, 64-66", [1, 64, 65, 66]),
        (["-3--1", "none"], [-3, -2, -1, "none"]),
        ("-9", [-9]),
        ("5-5", [5]),
    ],
)
def test_ranges_stand_for_their_numbers(typed: object, read: list[object]) -> None:
    assert JobFilter.model_validate({"exit_code": typed}).given == {"exit_code": read}


@pytest.mark.parametrize("typed", ["66-64", f"0-{MOST}", "1-", "a-b", "0-9999999999", "0-600,700-1300"])
def test_what_is_no_range_or_too_long_is_refused(typed: str) -> None:
    with pytest.raises(ValidationError):
        JobFilter.model_validate({"exit_code": typed})
