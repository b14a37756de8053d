from pathlib import Path

import pytest

from pilotage.cli.processes import site_file
from pilotage.fabric.director.configuration import InvalidDirector


def test_a_token_file_that_is_replaced_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    now = site_file.token_reader(file, InvalidDirector)
    assert now() == "first"

    file.write_text("second\n")

    assert now() == "second"


def test_a_token_file_that_is_being_written_leaves_the_token_before(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    now = site_file.token_reader(file, InvalidDirector)

    file.write_text("")
    assert now() == "first"
    file.unlink()
    assert now() == "first"


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe"])
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(InvalidDirector, match=f"{file}: holds no token"):
        site_file.token_reader(file, InvalidDirector)
