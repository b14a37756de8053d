import pytest

from pilotage.cli import options
from pilotage.cli.errors import WrongUsage
from pilotage.cli.options import JobFilters
from requirements.errors import format_ids


def test_numbers_ranges_and_lists_name_jobs_each_once() -> None:
    assert options.parse_ids(["7", "1-3", "3,9"]) == [7, 1, 2, 3, 9]


def test_no_words_name_no_job() -> None:
    assert options.parse_ids(None) == []


@pytest.mark.parametrize("word", ["x", "1-", "-1", "3-1", "1.5", "", "1-99999999999"])
def test_what_is_no_id_is_refused(word: str) -> None:
    with pytest.raises(WrongUsage):
        options.parse_ids([word])


def test_ids_are_shown_as_short_as_they_can_be_typed() -> None:
    assert format_ids([1, 2, 3, 5, 9, 8]) == "1-3, 5, 8-9"
    assert format_ids([]) == ""


def test_filters_are_those_that_were_given() -> None:
    assert options.given_options(JobFilters(status="Done", vo=None)) == {"status": "Done"}
