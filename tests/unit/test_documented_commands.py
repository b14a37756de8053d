"""The commands that the documentation names: each exists, and so do its options."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pilotage.cli import application
from tests.support.left_out import needs_every_plugin
from tests.unit.test_documentation_links import OTHERS, PAGES, PROJECT

#: Code in a line, and lines of blocks of code.
_CODE = re.compile(r"`([^`\n]+)`|^(?:\$ )?((?:\(?[a-zA-Z_]+[=&]\S* ?)*pilotage .*)$", re.MULTILINE)
_END = re.compile(r"[|;&<>()#]|\s&&")


#: Read by a parser of its own, on nodes without the program; a format of another package.
_ELSEWHERE = (["pilot"], ["config", "import", "mine"])


@cache
def program() -> Any:
    return get_command(application.application())


def named_commands(page: Path) -> Iterator[str]:
    """What a page says to type, from the word `pilotage` on."""
    for found in _CODE.finditer(page.read_text()):
        text = found[1] or found[2]
        for part in re.split(r"(?<![\w/-])pilotage(?= )", text)[1:]:
            yield _END.split(part, maxsplit=1)[0]


def find_fault(typed: str) -> str:
    """What no command of the program has; empty: nothing."""
    rest = typed.split()
    if any(rest[: len(words)] == words for words in _ELSEWHERE):
        return ""
    command = program()
    while hasattr(command, "commands") and rest and re.fullmatch(r"[a-z][a-z0-9-]*", rest[0]):
        if rest[0] not in command.commands:
            return f"no command {rest[0]}: {typed}"
        command = command.commands[rest.pop(0)]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    used = [word.partition("=")[0].rstrip(".,:…]") for word in rest if word.startswith("--")]
    return "; ".join(f"no option {name}: {typed}" for name in used if name not in options and name != "--")


@needs_every_plugin
@pytest.mark.parametrize("page", [*OTHERS, *PAGES], ids=lambda page: str(page.relative_to(PROJECT)))
def test_what_is_to_be_typed_exists(page: Path) -> None:
    assert [fault for typed in named_commands(page) if (fault := find_fault(typed))] == []


def test_what_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Type `pilotage job nothing` or\n```console\n$ pilotage job list --nothing\n```\n")
    faults = [find_fault(typed) for typed in named_commands(page)]
    assert faults == ["no command nothing:  job nothing", "no option --nothing:  job list --nothing"]
