"""Text of one section of the tree, and edits from a changed text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cs_config.errors import ConfigError
from cs_config.source import yaml_reader, yaml_writer
from cs_config.source.sections import Section, Tree, find_line, to_plain
from cs_config.versions import diff, patch
from cs_config.versions.patch import Edit
from requirements.errors import Problem

#: Name of the text in messages.
_FILE = "text"


def section_text(tree: Tree, names: Sequence[str]) -> str:
    """The text of the section at a path; empty if the section is missing or empty."""
    entry = patch.find_entry(tree, names)
    return yaml_writer.to_yaml(entry) if isinstance(entry, dict) and entry else ""


def edits_from_text(tree: Tree, names: tuple[str, ...], text: str) -> tuple[Edit, ...]:
    """The edits that make the section equal to a text; an empty text removes the section.

    Raises:
        ConfigError: The text cannot be read; lines are those of the text.
    """
    before = patch.find_entry(tree, names)
    after = to_plain(_read(names, text))
    if after == {}:
        return (Edit(names=names, value=diff.ABSENT),) if before is not diff.ABSENT else ()
    if not isinstance(before, dict) or not isinstance(after, dict):
        return (Edit(names=names, value=after),)
    found = diff.compare(before, after)
    return tuple(Edit(names=(*names, *each.names), value=each.after) for each in found)


def _read(names: tuple[str, ...], text: str) -> Section:
    if not text.strip():
        return Section(1)
    reading = yaml_reader.read_yaml(text, _FILE)
    if reading.problems:
        raise ConfigError(tuple(_below(names, each) for each in reading.problems))
    return reading.root


def _below(names: tuple[str, ...], problem: Problem) -> Problem:
    path = "/".join(filter(None, (*names, problem.path.strip("/"))))
    return replace(problem, path=path)


def with_lines(problems: Iterable[Problem], names: tuple[str, ...], text: str) -> Iterator[Problem]:
    """The problems with lines of the section's own text; without lines if they are about other sections."""
    root = yaml_reader.read_yaml(text, _FILE).root
    for problem in problems:
        path = tuple(problem.path.split("/"))
        is_within = path[: len(names)] == names
        line = find_line(root, path[len(names) :]) if is_within else None
        yield replace(problem, line=line, file=None, column=None, excerpt=None)
