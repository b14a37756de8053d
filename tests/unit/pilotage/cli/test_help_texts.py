"""What `--help` shows, command by command."""

import re
import shlex
from collections.abc import Iterator

import pytest
from typer.main import get_command

from pilotage.cli import application
from tests.support.left_out import is_there


def commands(command: object, path: str) -> Iterator[tuple[str, object]]:
    """Every command that does something, by the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, each in (inner or {}).items():
        yield from commands(each, f"{path} {name}")


EVERY = dict(commands(get_command(application.application()), "pilotage"))
if is_there("batch_check"):
    from pilotage.plugins.batch_check import command as batch_command

    EVERY["pilotage-batch-check"] = get_command(batch_command._application())


@pytest.mark.parametrize("words", EVERY)
def test_a_command_says_what_it_does_and_what_each_of_its_words_is(words: str) -> None:
    command = EVERY[words]
    assert command.help  # type: ignore[attr-defined]
    unsaid = [each.name for each in command.params if not each.help]  # type: ignore[attr-defined]
    assert unsaid == []


@pytest.mark.parametrize("words", EVERY)
def test_a_command_shows_an_example_that_it_understands(words: str) -> None:
    command = EVERY[words]
    [example] = re.findall(r"^Example: `(.*)`\.$", command.help, re.MULTILINE)  # type: ignore[attr-defined]
    typed = shlex.split(example)
    own = words.split()
    assert typed[: len(own)] == own
    command.make_context(words, typed[len(own) :])  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", sorted(EVERY.keys() - {"pilotage pilot"}))  # a pilot reads its own flags
def test_a_command_speaks_json(words: str) -> None:
    options = [flag for each in EVERY[words].params for flag in each.opts]  # type: ignore[attr-defined]
    assert "--json" in options


def test_the_overview_lists_each_command_with_its_own_first_sentence() -> None:
    whole = get_command(application.application()).commands  # type: ignore[attr-defined]
    assert whole.keys() == application.list_commands().keys()
    for name, command in application.list_commands().items():
        assert " ".join(whole[name].help.split("\n\n")[0].split()) == command.help


def test_an_option_without_a_value_shows_no_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        application.main(["job", "list", "--help"])
    text = capsys.readouterr().out
    assert "--json" in text
    assert "bool" not in text


@pytest.mark.parametrize("words", ["job submit", "job kill", "config set", "agent"])
def test_an_argument_shows_its_name_without_a_type(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        application.main([*words.split(), "--help"])
    text = capsys.readouterr().out
    assert "Arguments" in text
    assert "<list" not in text
    assert "<str" not in text


@pytest.mark.parametrize("words", sorted(EVERY))
def test_the_value_of_an_option_has_a_name_in_words(words: str) -> None:
    parameters = EVERY[words].params  # type: ignore[attr-defined]
    valued = [each for each in parameters if each.param_type_name == "option" and not each.is_flag]
    assert [each.name for each in valued if each.metavar is None] == []
