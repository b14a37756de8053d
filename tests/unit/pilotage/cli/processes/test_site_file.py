from pathlib import Path

import pytest

from pilotage.cli.processes import site_file
from pilotage.fabric.director.configuration import InvalidDirector


def test_a_name_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "director.yaml"
    file.write_text("vos:\n  cms: {token_file: /a}\n  lhcb: {token_file: /b}\n  cms: {token_file: /c}\n")

    with pytest.raises(
        InvalidDirector, match=r"cms stands twice, the first time in line 2 \(.*director.yaml:4\)"
    ):
        site_file.parse_file(file, InvalidDirector)


def test_what_is_merged_in_may_be_said_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "director.yaml"
    file.write_text("usual: &usual {cores: 1, memory: 2}\nqueues:\n- {<<: *usual, cores: 4}\n")

    told = site_file.parse_file(file, InvalidDirector)

    assert told == {"usual": {"cores": 1, "memory": 2}, "queues": [{"cores": 4, "memory": 2}]}
