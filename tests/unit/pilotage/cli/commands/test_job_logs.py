import pytest

from pilotage.cli.commands.job_show import new_lines


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
