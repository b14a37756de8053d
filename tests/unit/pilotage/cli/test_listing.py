import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pilotage.cli import output

JOBS = [{"job_id": number} for number in range(2500, 0, -1)]


def page(limit: int, after: Any) -> Mapping[str, Any]:
    """Jobs as the service pages them, never more than it gives at once."""
    behind = [job for job in JOBS if after is None or job["job_id"] < after]
    found = behind[: min(limit, output.PAGE)]
    return {"jobs": found, "next": found[-1]["job_id"] if len(behind) > len(found) else None}


COLUMNS: Mapping[str, output.Column] = {"#ID": "job_id"}


@pytest.mark.parametrize(("limit", "found", "goes_on"), [(1, 1, 2500), (1700, 1700, 801), (9999, 2500, None)])
def test_a_list_is_read_page_by_page_up_to_its_limit(limit: int, found: int, goes_on: int | None) -> None:
    read = output.read_pages("jobs", page, limit=limit)
    assert (read.entries, read.next) == (JOBS[:found], goes_on)


def test_the_parts_of_a_list_make_the_whole() -> None:
    first = output.read_pages("jobs", page, limit=2400)
    second = output.read_pages("jobs", page, limit=2400, after=first.next)
    assert ([*first.entries, *second.entries], second.next) == (JOBS, None)
    assert output.read_pages("jobs", page).entries == JOBS


def test_a_list_that_goes_on_says_so_beside_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    part = output.read_pages("jobs", page, limit=2)
    replace(part, total=2500).emit(COLUMNS, as_json=False)
    said = capsys.readouterr().err
    assert "Showing 2 of 2,500 jobs" in said
    assert "--after 2499" in said
    output.read_pages("jobs", page).emit(COLUMNS, as_json=False)
    assert not capsys.readouterr().err


def test_machines_find_where_a_list_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    output.read_pages("jobs", page, limit=2).emit(COLUMNS, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"jobs": JOBS[:2], "next": 2499}
    assert not printed.err
