"""Tutorials are followed as a reader follows them: their commands are run, what they show is compared.

A document is Markdown. What counts of it:

- a block `sh`: commands, one a line; each has to succeed
- a block `console`: a command after `$ ` (lines after `> ` go on with it), and below it what it says. `…`
  stands for anything in a line, a line of nothing but `…` for any number of lines; how wide gaps and
  rules are does not count. A command may fail if the next one is `echo $?`
- any other block below "Write `job.jdl`:", or what ends like it with a name and a colon, is that file
- "leave it running" in the paragraph before a block, or in the comment of a line: the last command of the
  block, or that line, is not waited for once it has said what is shown, or anything
- "On **a** and **b**" in the paragraph before a block: on these hosts, until others are named

`python -m tests.support.documents.tutorials FILE` follows one in a directory of its own and shows what
commands really say.
"""

import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from examples.servers.starting import free_port
from tests.support.documents import readers
from tests.support.documents.shell import Answer, Shell

_FENCE = re.compile(r"( *)```(\w*) *$")
_FILE = re.compile(r"`([\w./~@-]+)`:$")
_HOSTS = re.compile(r"\bOn ((?:\*\*[\w.-]+\*\*(?:, | and )?)+)")
_RULE = re.compile("─+")
_STAYS = "leave it running"


class TutorialFailed(AssertionError):
    """A reader would have seen something else, or could not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block, with the paragraph before it."""

    kind: str
    lines: tuple[str, ...]
    number: int  #: of its first line
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is typed, and what is shown below it."""

    text: str
    number: int  #: of its line
    shown: str | None = None  #: None: nothing is said of it
    stays: bool = False
    may_fail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What is written into a file."""

    name: str
    text: str
    number: int


#: Where the service of a tutorial listens.
_PORT = "8750"
#: Tells an author what a command said.
Tell = Callable[[Command, Answer], None]


def follow(
    document: Path,
    shells: Mapping[str, Shell],
    *,
    part: str = "",
    instead: Mapping[str, str] | None = None,
    tell: Tell | None = None,
) -> int:
    """Do what a document says; how many commands that were.

    Args:
        document: The tutorial.
        shells: One a host; the first one is where it begins.
        part: The heading of what is done; without it all of the document is.
        instead: What is another here than in the document, such as a port that is free.
        tell: Called after each command.

    Raises:
        TutorialFailed: A command failed, or said something else; with the file and the line.
    """
    hosts: tuple[str, ...] = (next(iter(shells)),)
    count, text = 0, document.read_text()
    for block in blocks(_put(_part(text, part) if part else text, instead or {})):
        hosts = _hosts(block) or hosts
        for step in steps(block):
            for host in hosts:
                _take(step, shells[host], document, tell)
                count += isinstance(step, Command)
    return count


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document, in order."""
    lines, number = text.splitlines(), 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        end = lines.index(f"{fence[1]}```", number)
        body = textwrap.dedent("\n".join(lines[number:end])).split("\n")
        before = _paragraph_above(lines[: number - 1])
        yield Block(kind=fence[2], lines=tuple(body), number=number + 1, before=before)
        number = end + 1


def steps(block: Block) -> Sequence[Command | File]:
    """What a block tells to do; nothing if it only shows something."""
    if block.kind in ("sh", "console"):
        found = list(_typed(block) if block.kind == "console" else _plain(block))
        if _STAYS in block.before.lower() and found:
            found[-1] = replace(found[-1], stays=True)
        return found
    name = _FILE.search(block.before)
    return [File(name=name[1], text="\n".join((*block.lines, "")), number=block.number)] if name else []


def is_as_shown(shown: str, said: str) -> bool:
    """Whether a command said what the document shows."""
    return re.fullmatch(_pattern(shown), _text(said)) is not None


def begins_as_shown(shown: str, said: str) -> bool:
    """Whether a command that runs on said what the document shows, whatever it has said since."""
    return re.match(_pattern(shown), _text(said)) is not None


def _pattern(shown: str) -> str:
    return "".join(r"(?:.*\n)*?" if line.strip() == "…" else _line(line) + r"\n" for line in _lines(shown))


def _text(said: str) -> str:
    return "".join(f"{line}\n" for line in _lines(said))


def _line(shown: str) -> str:
    return ".*".join(re.escape(part) for part in shown.split("…"))


def _lines(text: str) -> list[str]:
    """Without empty ones, gaps and rules: how wide a table is depends on its content.

    Documents show tables as they are on a terminal; here a program reads them, separated by tabs.
    """
    found = (_RULE.sub("─", " ".join(line.split())) for line in text.splitlines())
    return [line for line in found if line not in ("", "─")]


def _paragraph_above(lines: Sequence[str]) -> str:
    found: list[str] = []
    for line in reversed(lines):
        if line.strip() == "```" or (found and not line.strip()):
            break
        found += [line.strip()] if line.strip() else []
    return " ".join(reversed(found))


def _hosts(block: Block) -> tuple[str, ...]:
    found = _HOSTS.search(block.before)
    return tuple(re.findall(r"[\w.-]+", found[1].replace(" and ", " "))) if found else ()


def _typed(block: Block) -> Iterator[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.lines, block.number):
        if line.startswith("$ "):
            found.append(Command(text=line[2:], number=number, shown=""))
        elif line.startswith("> ") and found and not found[-1].shown:
            found[-1] = replace(found[-1], text=f"{found[-1].text}\n{line[2:]}")
        elif found:
            found[-1] = replace(found[-1], shown=f"{found[-1].shown}{line}\n")
    for command, following in zip(found, [*found[1:], None], strict=True):
        yield replace(command, may_fail=following is not None and following.text == "echo $?")


def _plain(block: Block) -> Iterator[Command]:
    text, first = "", block.number
    for number, line in enumerate(block.lines, block.number):
        text, first = (f"{text}\n{line}", first) if text else (line, number)
        if text.endswith("\\") or not text.strip() or not _is_whole(text):
            continue
        if not text.lstrip().startswith("#"):
            yield Command(text=text, number=first, stays=_STAYS in text.lower())
        text = ""


def _is_whole(text: str) -> bool:
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0


def _take(step: Command | File, shell: Shell, document: Path, tell: Tell | None) -> None:
    if isinstance(step, File):
        answer = shell.write(step.name, step.text)
        if answer.status != 0:
            raise TutorialFailed(f"{document}:{step.number}: {step.name} was not written: {answer.output}")
        return
    answer = _answer(step, shell)
    if tell:
        tell(step, answer)
    _compare(step, answer, f"{document}:{step.number}")


def _answer(command: Command, shell: Shell) -> Answer:
    if not command.stays:
        return shell.run(command.text)
    shown = command.shown
    return shell.stay(
        command.text, lambda said: bool(said.strip()) if shown is None else begins_as_shown(shown, said)
    )


def _compare(command: Command, answer: Answer, where: str) -> None:
    fault = _fault(command, answer)
    if fault:
        said = textwrap.indent(answer.output, "    ")
        raise TutorialFailed(f"{where}: $ {command.text}\n{fault}; it says\n{said}")


def _fault(command: Command, answer: Answer) -> str:
    """What a reader would stumble over; empty: nothing."""
    if command.stays and answer.status is not None:
        return "should go on running, and ended"
    if not command.stays and answer.status is None:
        return "did not end in time"
    if answer.status and not command.may_fail:
        return f"ended with status {answer.status}"
    is_right = begins_as_shown if command.stays else is_as_shown
    if command.shown is not None and not is_right(command.shown, answer.output):
        return f"should say\n{textwrap.indent(command.shown, '    ')}"
    return ""


def _part(text: str, heading: str) -> str:
    """What stands below a heading, with as many lines above it as there are."""
    before, found, after = text.partition(f"\n{heading}\n")
    if not found:
        raise TutorialFailed(f"no heading {heading!r}")
    level = heading.split()[0]
    return "\n" * (before.count("\n") + 2) + after.partition(f"\n{level} ")[0]


def _put(text: str, instead: Mapping[str, str]) -> str:
    for shown, real in instead.items():
        text = text.replace(shown, real)
    return text


def follow_at_home(
    document: Path,
    shell: Shell,
    *,
    part: str = "",
    tell: Tell | None = None,
) -> int:
    """Follow a tutorial of one machine, at a port that is free."""
    port = str(free_port())
    shell.run(f"export PILOTAGE_PORT={port}")
    return follow(document, {"here": shell}, part=part, instead={_PORT: port}, tell=tell)


def main() -> None:
    document = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as directory, readers.at_home(Path(directory)) as shell:
        follow_at_home(document, shell, tell=_print)


def _print(command: Command, answer: Answer) -> None:
    print(f"$ {command.text}\n{answer.output}", end="", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
