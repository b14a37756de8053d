import json

import pytest
from typer.exceptions import TyperException

from pilotage.cli import application, errors
from pilotage.cli.errors import CommandRefused
from requirements.errors import InvalidJob, Problem

PROBLEM = Problem(
    path="Memory", message="is not a number", file="a.jdl", line=3, column=2, excerpt='  Memory = "x";'
)


def test_each_problem_is_one_line_with_its_place_and_excerpt(capsys: pytest.CaptureFixture[str]) -> None:
    status = errors.show_error(InvalidJob([PROBLEM, PROBLEM]), as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == 'pilotage: Memory: is not a number (a.jdl:3:2)  Memory = "x";'
    assert status == errors.WRONG


def test_an_equal_problem_of_many_jobs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = [f"jobs[{n}]/CPUTime: 60 is too small" for n in range(60)] + ["jobs[2]/Bad: is unknown", "a", "a"]
    errors.show_error(CommandRefused("\n".join(told)), as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        "pilotage: jobs[0]/CPUTime: 60 is too small (and 59 more jobs)",
        "pilotage: jobs[2]/Bad: is unknown",
        "pilotage: a",
        "pilotage: a",
    ]


def test_machines_get_the_code_and_the_details(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show_error(InvalidJob([PROBLEM]), as_json=True)
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "invalid_job"
    assert error["details"]["problems"][0]["line"] == 3


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status = errors.show_error(FileNotFoundError(2, "No such file or directory", "a.jdl"), as_json=False)
    assert capsys.readouterr().err == "pilotage: a.jdl: No such file or directory\n"
    assert status == errors.REFUSED


def test_memory_that_is_refused_is_no_error_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.show(MemoryError(), as_json=False) == errors.REFUSED
    assert capsys.readouterr().err == "pilotage: no memory is left\n"


def test_wrong_usage_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    error = TyperException("no such option")
    error.exit_code = 2
    assert errors.show_error(error, as_json=False) == errors.WRONG
    assert capsys.readouterr().err == "pilotage: no such option\n"


def test_an_error_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show_error(CommandRefused("job \x1b[31m\x1b]0;x\x07 cannot be killed"), as_json=False)
    assert capsys.readouterr().err == "pilotage: job \\x1b[31m\\x1b]0;x\\x07 cannot be killed\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job", "list", "--limit", "x"), "for '--limit': 'x' is not allowed, allowed is a whole number"),
        (("job", "list", "--limit", "0"), "for '--limit': '0' is not allowed, allowed is at least 1"),
        (("job", "wait", "1", "--timeout", "x"), "for '--timeout': 'x' is not allowed, allowed is a number"),
        (("serve", "--port", "x"), "for '--port': 'x' is not allowed, allowed is a whole number"),
        (("job", "show", "x"), "'x' is not allowed, allowed is a whole number"),
    ],
    ids=str,
)
def test_a_wrong_value_of_an_option_is_told_in_our_words(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        application.main(list(words))
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(message)
