import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from pilotage.cli import output
from pilotage.cli.commands import job_list
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.options import JobFilters
from pilotage.client.api import ServiceAway
from requirements.errors import InvalidRequest
from requirements.job_fields import FIELDS

COUNTS = [
    {"job_group": "scan", "site": "LCG.CERN.ch", "status": "Running", "count": 2},
    {"job_group": "scan", "site": "LCG.CERN.ch", "status": "Waiting", "count": 1},
    {"job_group": "fit", "site": "ANY", "status": "Waiting", "count": 1500},
]


class Jobs:
    """A service with some jobs."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, str]] = []

    def jobs(self, filters: Mapping[str, str], **_: object) -> dict[str, Any]:
        self.asked.append(filters)
        at = (datetime.now(UTC) - timedelta(minutes=9, seconds=5)).isoformat()
        job = {each.name: each.name for each in FIELDS} | {"job_id": 10_345, "submitted_at": at}
        return {"jobs": [job | {"minor_status": "Marked for termination", "exit_code": 137}], "next": None}

    def summary(self, *, by: Sequence[str], filters: Mapping[str, str]) -> list[dict[str, Any]]:
        self.asked.append({"by": ",".join(by), **filters})
        return COUNTS


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    made = Jobs()
    monkeypatch.setattr(ServiceOptions, "connect", lambda _: nullcontext(made))
    return made


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> io.StringIO:
    """What is drawn on a terminal so wide."""
    shown = io.StringIO()
    console = Console(file=shown, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "console", lambda: console)
    return shown


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lists_keep_ages_and_numbers_whole_on_narrow_terminals(
    jobs: Jobs, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = on_terminal(monkeypatch, columns)
    job_list.list_jobs(filters=JobFilters(), service=ServiceOptions())
    text = shown.getvalue()
    assert all(len(line) <= columns for line in text.splitlines())
    assert "9 min" in text
    assert "10345" in text
    assert ("Left out" in capsys.readouterr().err) is (columns < 120), "the last columns give way"
    assert jobs.asked == [{}]


def test_columns_and_their_order_are_chosen_by_names_of_fields_or_options(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    job_list.list_jobs(
        filters=JobFilters(),
        columns="id,name,group,status,exit_code,site,age",
        sort="-exit-code",
        service=ServiceOptions(),
    )
    heads, row = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert heads == ["Job", "Name", "Job group", "Status", "Exit code", "Site", "Submitted"]
    assert row == ["10345", "job_name", "job_group", "status", "137", "site", "9 min"]
    assert jobs.asked == [{"sort": "-exit_code"}]


@pytest.mark.parametrize("option", ["columns", "sort"])
def test_an_unknown_column_is_refused_with_the_nearest(jobs: Jobs, option: str) -> None:
    wrong: dict[str, Any] = {option: "exit_cod"}
    with pytest.raises(InvalidRequest, match=rf"--{option}.*did you mean exit_code"):
        job_list.list_jobs(filters=JobFilters(), **wrong, service=ServiceOptions())
    assert not jobs.asked


def test_every_answered_field_is_a_column() -> None:
    for field in FIELDS:
        if field.is_answered:
            assert len(job_list.parse_columns(field.name)) == 1


def test_top_counts_living_jobs_once_without_a_terminal(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    job_list.top(filters=JobFilters(), by="job_group,site", service=ServiceOptions())
    printed = capsys.readouterr().out
    assert "1,503 jobs: 1,501 Waiting, 2 Running" in printed
    scan, fit = (printed.index(name) for name in ("scan", "fit"))
    assert scan < fit, "running jobs first"
    (asked,) = jobs.asked
    assert asked["by"] == "job_group,site,status"
    assert {"Waiting", "Running"} <= set(asked["status"].split(","))
    assert "Done" not in asked["status"].split(",")


def test_a_table_is_drawn_anew_until_it_is_interrupted_also_while_the_service_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = on_terminal(monkeypatch, 100)
    answers: list[RenderableType | Exception] = ["first", ServiceAway("it is away"), "third"]
    pauses: list[float] = []

    def draw() -> RenderableType:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job_list.draw_repeatedly(draw, pause=pause)
    assert len(pauses) == 3
    for text in ("first", "not up to date: it is away", "third"):
        assert text in shown.getvalue()
