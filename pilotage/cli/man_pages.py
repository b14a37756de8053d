"""Manual pages of `pilotage` and each of its commands: `python -m pilotage.cli.man_pages DIRECTORY`.

Made from the structures that `--help` prints, so that both say the same.
"""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from typer.main import get_command

from pilotage.cli import application

#: Exit statuses of every command; see `errors`.
_STATUSES = (
    ("0", "Done."),
    ("1", "Refused or not found, or a check has failed."),
    ("2", "Wrong usage or configuration."),
    ("130", "Interrupted."),
)


def write_pages(directory: Path) -> list[Path]:
    """Write all pages to a directory: `pilotage.1`, `pilotage-job.1`, `pilotage-job-list.1` and so on."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for words, command in list_commands():
        file = directory / f"{'-'.join(words)}.1"
        file.write_text("\n".join(format_page(words, command)) + "\n", encoding="utf-8")
        written.append(file)
    return written


def list_commands() -> Iterator[tuple[list[str], Any]]:
    """All commands and groups with their words, each before what is in it."""
    return _walk(["pilotage"], get_command(application.application()))


def _walk(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _walk([*words, name], each)


def format_page(words: list[str], command: Any) -> Iterator[str]:
    """The lines of a page in roff, with the macros of man(7)."""
    context = command.make_context(" ".join(words), [], resilient_parsing=True)
    summary, *details = [" ".join(each.split()) for each in (command.help or "").split("\n\n")]
    version = f"pilotage {metadata.version('pilotage')}"
    yield f'.TH {_escape("-".join(words).upper())} 1 "" "{_escape(version)}" "Pilotage"'
    yield from (".SH NAME", rf"{_escape('-'.join(words))} \- {_escape(summary.rstrip('.'))}")
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (".SH SYNOPSIS", rf"\fB{_escape(' '.join(words))}\fR {_escape(usage)}")
    yield from (".SH DESCRIPTION", _escape(summary))
    for paragraph in details:
        yield from (".PP", _escape(paragraph))
    parameters = [each for each in command.get_params(context) if each.get_help_record(context)]
    for title, kind in (("ARGUMENTS", "argument"), ("OPTIONS", "option")):
        records = [each.get_help_record(context) for each in parameters if each.param_type_name == kind]
        yield from _section(title, records)
    inner = getattr(command, "commands", {})
    commands = [(" ".join([*words, name]), each.help.split("\n\n")[0]) for name, each in inner.items()]
    yield from _section("COMMANDS", commands)
    yield from _section("EXIT STATUS", _STATUSES)
    others = ["-".join(words[:-1])] if words[1:] else []
    others += ["-".join([*words, name]) for name in inner]
    yield from (".SH SEE ALSO", ", ".join(rf"\fB{_escape(name)}\fR(1)" for name in others))


def _section(title: str, entries: Any) -> Iterator[str]:
    """A section with a paragraph for each term and its text."""
    if entries:
        yield f".SH {title}"
    for term, text in entries:
        yield from (".TP", rf"\fB{_escape(term)}\fR", _escape(" ".join(text.split())))


def _escape(text: str) -> str:
    """Text of a help, where `[` is escaped for Rich, in roff: no sign of it is a request or an escape."""
    plain = text.replace(r"\[", "[").replace("\\", r"\e").replace("-", r"\-")
    plain = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in plain)
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


if __name__ == "__main__":
    sys.stdout.write(f"{len(write_pages(Path(sys.argv[1])))} pages are in {sys.argv[1]}\n")
