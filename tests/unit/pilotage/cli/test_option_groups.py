"""Options of commands from groups and from the settings."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from pilotage.cli import options, settings
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    vo: Annotated[str | None, options.option("VO", "A VO.")] = None
    most: Annotated[int, typer.Option("--at-most", help="So many.")] = 3


def run(command: options.CommandFunction, *words: str) -> int:
    app = typer.Typer()
    app.command()(options.expand_groups(command))
    return CliRunner().invoke(app, words).exit_code


def test_a_group_of_options_arrives_as_one_value() -> None:
    seen: list[Any] = []

    def command(name: Annotated[str, options.argument("NAME", "A name.")], *, filters: Filters) -> None:
        seen.append((name, filters, options.given_options(filters)))

    assert run(command, "a", "--vo", "cms") == 0
    assert run(command, "b", "--at-most", "5") == 0
    assert seen == [
        ("a", Filters(vo="cms", most=3), {"vo": "cms", "most": 3}),
        ("b", Filters(most=5), {"most": 5}),
    ]


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("2026-03-28", "2026-03-28"),
        ("2026-03-28 12:00", "2026-03-28 12:00"),
        ("20260328", "2026-03-28"),
        ("1790000000", "1790000000"),
        ("20269999", "20269999"),
        ("99999999w", "99999999w"),
        ("7x", "7x"),
        ("yesterday", "yesterday"),
        ("", ""),
    ],
)
def test_a_date_is_sent_as_a_service_of_the_last_release_reads_it_and_all_else_as_typed(
    typed: str, sent: str
) -> None:
    assert send_times("--since", typed, "--before", typed) == {
        "submitted_since": sent,
        "submitted_before": sent,
    }


def test_how_long_ago_is_sent_as_a_time_which_a_service_of_the_last_release_reads() -> None:
    sent = send_times("--since", "2d", "--before", "30m")
    ages = [datetime.now(UTC) - datetime.fromisoformat(each) for each in sent.values()]
    assert list(sent) == ["submitted_since", "submitted_before"]
    assert timedelta(days=2) <= ages[0] < timedelta(days=2, hours=1)
    assert timedelta(minutes=30) <= ages[1] < timedelta(minutes=90)


def send_times(*words: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def command(*, filters: options.JobFilters) -> None:
        seen.append(options.given_options(filters))

    assert run(command, *words) == 0
    return seen[0]


def test_an_error_of_the_service_names_the_option_that_was_typed() -> None:
    """Not the field of the HTTP interface; of a list that is one field, without the number of the value."""

    def command(
        since: Annotated[str, options.option("TIME", "Start.", "--from")], *, filters: options.JobFilters
    ) -> None:
        raise CommandRefused(
            "submitted_since: no time\nstatus/0: none\nfrom: late\njobs: 3\nvo: x, status: y"
        )

    app = typer.Typer()
    app.command()(options.expand_groups(command))
    error = CliRunner().invoke(app, ["--from", "1h", "--since", "7x"]).exception
    expected = "--since: no time\n--status: none\n--from: late\njobs: 3\n--vo: x, status: y"
    assert (str(error), type(error)) == (expected, CommandRefused)


def test_a_flag_sets_its_setting_and_its_absence_leaves_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_HOST", "192.0.2.1")
    seen: list[Any] = []

    @settings.command_with("host", "port")
    def command(chosen: Settings, *, as_json: bool, once: bool = False) -> None:
        seen.append((chosen.home, chosen.host, chosen.port, as_json, once))

    assert run(command, "--home", str(tmp_path), "--port", "0", "--once") == 0
    assert run(command, "--home", str(tmp_path), "--host", "::1", "--json") == 0
    assert seen == [(tmp_path, "192.0.2.1", 0, False, True), (tmp_path, "::1", 8750, True, False)]
    assert run(command, "--workers", "2") == 2, "no option of this command"
