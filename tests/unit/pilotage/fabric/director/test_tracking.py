"""What a director reports of a pilot's end: a line for users, an empty line, and output for admins."""

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
            "NODE_FAIL: NodeDown\n\nat A.B.ch\n\njob 7: Done",
        ),
        (
            JobReport(state=State.FAILED, message="ended", exit_code=137),
            None,
            "ended, exit status 137 (signal 9)\n\n",
        ),
        (
            JobReport(state=State.KILLED, exit_code=3),
            "no such file",
            "killed, exit status 3\n\nits output could not be fetched: no such file",
        ),
        (
            JobReport(state=State.DONE, message="failed 0 exit_status 0", exit_code=0),
            OUTPUT,
            "its batch system reports a normal end\n\n",
        ),
        (JobReport(state=State.GONE, message="not listed"), OUTPUT, "not listed\n\n"),
        (
            JobReport(state=State.FAILED, message="x" * 5000),
            OUTPUT,
            f"{'x' * 450}\n\nat A.B.ch\n\njob 7: Done",
        ),
    ],
)
def test_the_reason_is_one_line_before_the_output(
    report: JobReport, output: Output | str | None, told: str
) -> None:
    assert tracking._last_words(report, output) == told
