from typing import Any, Self

import pytest

from pilotage.cli.commands import job_show
from pilotage.cli.commands.job_show import new_lines
from pilotage.cli.connection import ServiceOptions


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ("", "a\nb\n", "a\nb\n"),
        ("a\nb\n", "a\nb\nc\n", "c\n"),
        ("a\nb\n", "b\nc\n", "c\n"),
        ("a\nb", "a\nbc\n", "c\n"),
        ("a\nb", "a\nb\nc\nd", "c\nd"),
        ("a\nb\n", "a\nb\n\nc", "\nc"),
        ("a\n", "x\ny\n", "x\ny\n"),
        ("a\nb\n", "a\nb\n", ""),
        ("tick\n", "tick\ntick\n", "tick\n"),
        ("b\n", "a\nb\nc\nb\n", "a\nb\nc\nb\n"),
    ],
)
def test_only_lines_that_were_not_shown_are_new(before: str, after: str, new: str) -> None:
    assert new_lines(before, after) == new


class _Service:
    """A service whose job is in the next state of a list at each request."""

    def __init__(self, *states: tuple[str, str]) -> None:
        self.states = list(states)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def job(self, _job_id: int) -> dict[str, Any]:
        status, tail = self.states.pop(0)
        return {"status": status, "attempt": {"output_tail": tail}}


@pytest.mark.parametrize("last", ["started\n", ""])
def test_the_lines_of_a_job_that_has_ended_are_followed_by_its_status_and_where_the_rest_is(
    last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = _Service(("Running", ""), ("Running", "started\n"), ("Failed", last))
    monkeypatch.setattr(ServiceOptions, "connect", lambda _: service)
    monkeypatch.setattr(job_show, "_PAUSE", 0)
    job_show.logs(7, follow=True, service=ServiceOptions())
    printed = capsys.readouterr()
    assert printed.out == "started\n"
    assert printed.err == (
        "job 7 is Failed: what it wrote after its last heartbeat is not shown here;"
        " see `pilotage job output 7`\n"
    )
