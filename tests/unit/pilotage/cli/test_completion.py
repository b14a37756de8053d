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
def test_the_script_of_each_shell_is_shown(shell: str) -> None:
    script = run(["--show-completion", shell], _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert f"_PILOTAGE_COMPLETE=complete_{shell}" in script


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


@pytest.mark.parametrize(
    "words",
    ["job list", "pool list", "queue drain", "site list", "accounting", "pilots list", "config history"],
)
def test_a_client_command_imports_no_database_no_matcher_and_no_jdl_parser(words: str) -> None:
    heavy = (
        "sqlalchemy",
        "htcondor2",
        "classad2",
        "matcher",
        "optimizers",
        "fastapi",
        "pilotage.cli.settings",
    )
    code = (
        f"import sys; from pilotage.cli import application; application.application({words.split()!r});"
        f"print([each for each in {heavy} if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", ["job submit", "queue list", "config show", "config apply", "login"])
def test_a_client_command_that_reads_files_imports_no_database(words: str) -> None:
    code = (
        f"import sys; from pilotage.cli import application; application.application({words.split()!r});"
        f"print([each for each in ('sqlalchemy', 'matcher', 'fastapi') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
