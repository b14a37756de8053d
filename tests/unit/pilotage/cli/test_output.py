import io
import json
import sys
import time
from datetime import UTC, datetime

import pytest
import typer
from rich.console import Console

from pilotage.cli import application, output
from pilotage.cli.errors import harmless
from pilotage.fabric.cycle_summaries import DirectorSummary


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        ("", "–"),
        (True, "yes"),
        ([], "–"),
        (["a", 1], "a, 1"),
        (["137: Memory x 1.5, twice", "65: another site"], "137: Memory x 1.5, twice; 65: another site"),
        ({"Memory": 4000, "Tag": ["a"]}, "Memory = 4000; Tag = a"),
        (
            {"cpu": {"num_cores": {"min": 1}, "name": "x"}, "tags": "a"},
            "cpu = [num_cores = [min = 1]; name = x]; tags = a",
        ),
        ([{"a": 1, "b": 2}, {}], "[a = 1; b = 2], –"),
        ("[red]x", "[red]x"),
    ],
)
def test_values_are_shown_as_people_read_them(value: object, shown: str) -> None:
    assert output.cell(value) == shown


@pytest.mark.parametrize(
    ("then", "shown"),
    [
        ("2026-03-28T11:59:55Z", "5 s"),
        ("2026-03-28T11:50:00Z", "10 min"),
        ("2026-03-28T08:00:00Z", "4 h"),
        ("2026-03-01T12:00:00Z", "27 d"),
        ("2026-03-28T12:00:07Z", "0 s"),
    ],
)
def test_ages_are_told_in_the_largest_unit_that_says_enough(then: str, shown: str) -> None:
    assert output.ago(then, datetime(2026, 3, 28, 12, 0, tzinfo=UTC)) == shown


#: Rich takes the second one for an end without a beginning, also where brackets are escaped.
MARKUP = ["[bold]", r"\[/x]", r"\[link=https://example.org]", "[", "\\", ":smile:"]


@pytest.mark.parametrize("text", MARKUP)
def test_no_text_is_taken_for_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = output.table((text,), [[text], [{text: text}], [[text]]], title=text)
    output.emit({}, as_json=False, render=lambda: shown)
    output.emit({}, as_json=False, render=lambda: text)
    output.emit({}, as_json=False, render=lambda: output.facts({text: text}, title=text))
    output.progress_console().print(text)
    printed = capsys.readouterr()
    assert printed.out.replace(text.capitalize(), text).count(text) == 9
    assert printed.err.split() == [text, text]


def test_without_a_terminal_a_table_is_separated_by_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output.table(("#ID", "Why"), [[1, "two\twords\nhere"], [2, None]], title="Jobs")
    output.emit({}, as_json=False, render=lambda: shown)
    assert capsys.readouterr() == ("ID\tWhy\n1\ttwo words here\n2\t–\n", "Jobs\n")


def test_a_status_is_coloured_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    console.print(output.table(("Status",), [["Failed"], ["[red]x"]]))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[31mFailed" in console.file.getvalue()
    assert "[red]x" in console.file.getvalue()


def test_text_gives_no_orders_to_the_terminal() -> None:
    hostile = "job\x1b[31m\x1b]0;x\x07\x9b2J\u202egpj\udcff\ttab\nline ä–\u202f7"
    shown = harmless(hostile)
    assert shown == r"job\x1b[31m\x1b]0;x\x07\x9b2J\u202egpj\udcff" + "\ttab\nline ä–\u202f7"


def test_json_gives_no_orders_to_the_terminal_and_is_read_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = {"name": "job\x1b[31m\x9b2J\u202egpj\u2066x\U000e0041\ufeff größe"}
    output.emit(data, as_json=True, render=str)
    written = capsys.readouterr().out
    assert harmless(written) == written
    assert "größe" in written
    assert json.loads(written) == data


@pytest.mark.parametrize("as_json", [False, True])
def test_what_the_encoding_of_the_output_lacks_is_escaped(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "größe – 語"

    def show() -> None:
        output.emit(
            {"name": name}, as_json=as_json, render=lambda: output.table(("Name", "Pool"), [(name, "")])
        )

    app = typer.Typer()
    app.command()(show)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    with pytest.raises(SystemExit) as ended:
        application.run(lambda: app, [], name="show")
    assert ended.value.code == 0
    text = written.getvalue().decode("latin-1")
    if as_json:
        assert json.loads(text) == {"name": name}
    else:
        assert r"größe \u2013 \u8a9e" in text


@pytest.mark.parametrize(("width", "columns"), [(200, 8), (80, 6), (60, 5)])
def test_narrow_tables_break_no_short_word_and_leave_out_columns_instead(
    width: int, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("#ID", "Status", "Minor status", "VO", "Owner", "Site", "Pool", "Age")
    row = (
        123456,
        "Waiting",
        "Pilot Agent Submission",
        "cms",
        "operator",
        "OSG.CERN.ch",
        "93788a6f38f7",
        "2 s",
    )
    monkeypatch.setattr(output, "console", lambda: Console(width=width))
    output.emit({}, as_json=False, render=lambda: output.table(names, [row]))
    shown = capsys.readouterr()
    words = {word for value in row[:columns] for word in str(value).split()}
    assert words <= set(shown.out.split())
    assert max(map(len, shown.out.splitlines())) <= width
    assert ("Left out" in shown.err) == (columns < len(names))


def test_a_minor_status_stays_in_one_line_and_sentences_break(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("#Job", "Status", "Minor status", "Site", "#Submitted", "Name", "Owner", "VO")
    row = (27, "Done", "Execution Complete", "LCG.Example.org", "24 s", "report", "operator", "biomed")
    monkeypatch.setattr(output, "console", lambda: Console(width=80))
    output.emit({}, as_json=False, render=lambda: output.table(names, [row, row]))
    shown = capsys.readouterr()
    assert shown.out.count("Execution Complete") == 2
    assert "Owner, VO" in shown.err
    sentence = "a queue of the site that has no more room for the job"
    output.emit({}, as_json=False, render=lambda: output.table(names[:7], [(*row[:3], sentence, *row[4:7])]))
    assert "Left out" not in capsys.readouterr().err


def test_problems_of_a_cycle_are_logged_as_those_of_the_kind_of_process(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = DirectorSummary(at=datetime(2030, 1, 7, tzinfo=UTC), away=["farm: no answer"])
    summary.note_problem("cms", "the token is expired")

    output.report_cycle(summary, as_json=True)

    assert caplog.messages == ["farm: no answer", "the token is expired"]
    assert {name for name, _, _ in caplog.record_tuples} == {"pilotage.director"}
    printed = json.loads(capsys.readouterr().out)
    assert (printed["away"], printed["problems"]) == (["farm: no answer"], ["the token is expired"])


@pytest.mark.parametrize(("jobs", "words"), [(0, "0 jobs wait"), (1, "1 job waits"), (2, "2 jobs wait")])
def test_the_line_of_a_director_counts_in_plain_english(jobs: int, words: str) -> None:
    summary = DirectorSummary(at=datetime(2030, 1, 7, tzinfo=UTC), jobs=jobs, unserved={"A/ce/q": jobs})
    assert str(summary).startswith(f"{words}; ")
    assert ("slots too small: 1 job fits A/ce/q" in str(summary)) == (jobs == 1)


def test_a_time_has_the_offset_of_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert output.local_time("2030-01-07T23:00:05.5Z") == "2030-01-08 08:00:05+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_vos_are_written_as_people_write_them() -> None:
    assert [output.heading(name) for name in ("vo", "vos", "submit_pool")] == ["VO", "VOs", "Submit pool"]


def test_an_empty_text_is_no_line_for_programs_that_read_ids(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"job_ids": []}, as_json=False, render=lambda: "")
    assert capsys.readouterr().out == ""
