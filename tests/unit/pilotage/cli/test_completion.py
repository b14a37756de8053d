"""Shell completion by Typer's scripts, which call the program with the line typed so far in variables."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from pilotage.cli import application

Complete = Callable[[str], list[str]]
PROGRAM = [sys.executable, "-m", "pilotage.cli"]


def run(arguments: list[str], **variables: str) -> str:
    done = subprocess.run(
        [*PROGRAM, *arguments], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def complete_bash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("_PILOTAGE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            application.main([])
        return capsys.readouterr().out.split()

    return complete


def test_the_first_word_completes_to_every_command(complete_bash: Complete) -> None:
    assert set(complete_bash("pilotage ")) == set(application.list_commands())
    assert complete_bash("pilotage pilot") == ["pilot", "pilots"]


@pytest.mark.parametrize("name", sorted(application.list_commands()))
def test_every_command_completes_its_subcommands_and_options(name: str, complete_bash: Complete) -> None:
    command = get_command(application.application([name])).commands[name]  # type: ignore[attr-defined]
    inner = getattr(command, "commands", None)
    if inner is not None:
        assert set(complete_bash(f"pilotage {name} ")) == set(inner)
        name, command = f"{name} {next(iter(inner))}", next(iter(inner.values()))
    expected = {flag for each in command.params for flag in each.opts if flag.startswith("--")}
    assert expected - {"--help"} <= set(complete_bash(f"pilotage {name} --"))


def test_options_of_the_program_complete(complete_bash: Complete) -> None:
    expected = {"--version", "--install-completion", "--show-completion", "--help"}
    assert expected <= set(complete_bash("pilotage --"))


@pytest.mark.parametrize(
    ("shell", "variables"),
    [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})],
)
def test_zsh_and_fish_complete_with_help(shell: str, variables: dict[str, str]) -> None:
    def complete(line: str) -> str:
        wanted = f"complete_{shell}"
        return run([], _PILOTAGE_COMPLETE=wanted, _TYPER_COMPLETE_ARGS=line, **variables)

    assert "accounting" in complete("pilotage acc")
    listed = complete("pilotage job ")
    assert "reschedule" in listed
    assert "List jobs" in listed
    assert "--status" in complete("pilotage job list --st")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_installed(shell: str, tmp_path: Path) -> None:
    told = run(
        ["--install-completion", shell],
        HOME=str(tmp_path),
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    assert f"{shell} completion installed in {tmp_path}" in told.replace("\n", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_installed_script(tmp_path: Path) -> None:
    program = tmp_path / "pilotage"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pilotage.cli "$@"\n')
    program.chmod(0o755)
    script = run(["--show-completion", "bash"], _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    test = f"""{script}
COMP_WORDS=(pilotage job resc); COMP_CWORD=2
_pilotage_completion {program}
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", test], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["reschedule"]


#: Prints for each command which modules were imported for it, or for those before.
LOOK = """
import sys
from pilotage.cli import application
for line in sys.argv[2:]:
    application.application(line.split())
    print(line, "imports", *(each for each in sys.argv[1].split() if each in sys.modules))
"""


def list_imported(heavy: str, *lines: str) -> list[str]:
    command = [sys.executable, "-c", LOOK, heavy, *lines]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_client_commands_import_no_database_no_matcher_and_no_jdl_parser() -> None:
    lines = ("job list", "pool list", "queue drain", "site list", "accounting", "pilots list")
    heavy = "sqlalchemy htcondor2 classad2 matcher optimizers fastapi pilotage.cli.settings"
    found = list_imported(heavy, *lines, "config history")
    assert found == [f"{line} imports" for line in (*lines, "config history")]


def test_client_commands_that_read_files_import_no_database() -> None:
    lines = ("job submit", "queue list", "config show", "config apply", "login")
    assert list_imported("sqlalchemy matcher fastapi", *lines) == [f"{line} imports" for line in lines]
