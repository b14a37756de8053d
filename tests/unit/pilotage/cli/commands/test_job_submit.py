import pytest

from pilotage.cli.commands import job_submit
from pilotage.cli.errors import WrongUsage


def test_parameters_are_names_with_values() -> None:
    assert job_submit.parse_parameters(["A=1,2", "B=x"]) == {"A": ["1", "2"], "B": ["x"]}


@pytest.mark.parametrize("words", [["A"], ["=1"], ["A="], ["A=1", "A=2"]])
def test_parameters_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        job_submit.parse_parameters(words)
