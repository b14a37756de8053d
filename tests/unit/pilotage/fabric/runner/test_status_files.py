"""What payloads say of how far they are, and what hostile ones may say instead."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.runner import status_files
from pilotage.fabric.runner.status_files import LARGEST, MOST_PHASES, Progress


def said(text: str) -> list[str]:
    return [str(each) for each in status_files.read_progress(text)]


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("generated 117 of 250 events", ["generated 117 of 250"]),
        ("generated 1 of 2\ngenerated 2 of 2\nsimulated 1 of 2", ["generated 2 of 2", "simulated 1 of 2"]),
        ("d0gstar phase 3: 117 of 250", ["d0gstar phase 3 117 of 250"]),
        ("reading the geometry\n\n", []),
        ("117 of 250", []),
        ("a -1 of 3", []),
        ("a 1 of three", []),
        ("a 5 of 3", ["a 3 of 3"]),
        (f"a 1 of {10**13 - 1}", [f"a 1 of {LARGEST}"]),
        ("x" * 41 + " 1 of 2", []),
        ("\x1b[31mred 1 of 2", []),
    ],
)
def test_a_line_of_a_phase_is_understood_and_nothing_else(text: str, phases: list[str]) -> None:
    assert said(text) == phases


def test_what_was_said_before_holds_until_it_is_said_again() -> None:
    before = status_files.read_progress("generated 1 of 2\nsimulated 0 of 2")
    assert [str(each) for each in status_files.read_progress("simulated 1 of 2", before)] == [
        "generated 1 of 2",
        "simulated 1 of 2",
    ]


def test_there_is_a_bound_to_the_number_of_phases() -> None:
    lines = [f"phase{n} 1 of 2" for n in range(1000)]
    assert len(said("\n".join(lines))) == MOST_PHASES


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert all(0 <= each.done <= each.of <= LARGEST for each in status_files.read_progress(text))


@given(
    st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps)
)
def test_no_mark_breaks_its_reader(text: str) -> None:
    status_files.read_news(text)
    status_files.read_end(text)
    phases, tail = status_files.read_news(
        json.dumps({"phases": [[text, 1, 2], text, None, [1]], "output_tail": text})
    )
    assert len(phases) <= 1
    assert len(tail) <= 1500


@pytest.mark.parametrize("text", ["[" * 15_000, '{"a":' * 3_000])
def test_a_mark_of_brackets_only_tells_nothing(text: str) -> None:
    assert status_files.read_news(text) == ((), "")
    assert status_files.read_end(text) is None


def test_an_end_that_no_runner_would_tell_is_none() -> None:
    assert status_files.read_end('{"cause": "magic", "exit_code": 0}') is None
    forged = status_files.read_end(
        '{"cause": "payload", "status": "Done", "exit_code": 10000, "minor_status": ["x"]}'
    )
    assert forged is not None
    assert (forged.report.status, forged.report.exit_code) == (payload.DONE, None)


def test_progress_of_all_local_jobs_is_summed_up_with_what_has_not_begun() -> None:
    one, other = Progress("generated", 117, 250), Progress("generated", 250, 250)
    assert status_files.summed([(one,), (other,), ()], {"generated": 250}) == (
        Progress("generated", 367, 750),
    )
