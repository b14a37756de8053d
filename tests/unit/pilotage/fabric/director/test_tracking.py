"""What a director reports of a pilot's end: an empty line, a line for users, and output for admins."""

import pytest

from pilotage.fabric.batch.batch_system import JobReport, Output, State
from pilotage.fabric.director import tracking

OUTPUT = Output(stdout=b"", stderr=b"at A.B.ch\n\njob 7: Done\n")


@pytest.mark.parametrize(
    ("report", "output", "told"),
    [
        (
            JobReport(state=State.FAILED, message="NODE_FAIL:\n NodeDown"),
            OUTPUT,
            "\nNODE_FAIL: NodeDown\nat A.B.ch\n\njob 7: Done",
        ),
        (
            JobReport(state=State.FAILED, message="ended", exit_code=137),
            None,
            "\nended, exit status 137 (signal 9)\n",
        ),
        (
            JobReport(state=State.KILLED, exit_code=3),
            "no such file",
            "\nkilled, exit status 3\nits output could not be fetched: no such file",
        ),
        (
            JobReport(state=State.DONE, message="failed 0 exit_status 0", exit_code=0),
            OUTPUT,
            "\nits batch system reports a normal end",
        ),
        (JobReport(state=State.GONE, message="not listed"), OUTPUT, "\nnot listed\n"),
        (
            JobReport(state=State.FAILED, message="x" * 5000),
            OUTPUT,
            f"\n{'x' * 450}\nat A.B.ch\n\njob 7: Done",
        ),
    ],
)
def test_the_reason_is_one_line_before_the_output(
    report: JobReport, output: Output | str | None, told: str
) -> None:
    assert tracking._last_words(report, output) == told
