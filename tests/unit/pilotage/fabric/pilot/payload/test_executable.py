import os
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload import description
from pilotage.fabric.pilot.payload.description import NotFound


def found(name: str, home: Path, path: str = "/usr/bin:/bin") -> str:
    return description.find_program(name, home=home, environment={"PATH": path})


def test_a_program_of_the_sandbox_goes_before_one_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "ls").write_text("#!/bin/sh\n")

    assert found("ls", tmp_path) == str(tmp_path / "ls")
    assert found("./ls", tmp_path) == str(tmp_path / "ls")


def test_a_program_of_the_sandbox_is_made_executable(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o600)

    assert os.access(found("run", tmp_path), os.X_OK)


def test_a_program_in_a_directory_of_the_sandbox_is_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/run").write_text("")

    assert found("bin/run", tmp_path) == str(tmp_path / "bin/run")


def test_a_bare_name_is_looked_for_in_the_path_of_the_payload(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "tool"
    tool.parent.mkdir()
    tool.write_text("")
    tool.chmod(0o755)

    assert found("tool", tmp_path, path=str(tool.parent)) == str(tool)


@pytest.mark.parametrize(
    "name", ["nowhere-to-be-found", "/no/such/file", "../run", "bin/run", "/etc/passwd", "/tmp"]
)
def test_what_is_not_there_or_no_program_is_told_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=name.replace(".", r"\.")):
        found(name, tmp_path)
