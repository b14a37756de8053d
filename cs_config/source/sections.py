"""The parsed text of a configuration: sections and leaves with their lines."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from requirements.values import Scalar, fold

#: The value of a name without a section.
LeafValue = Scalar | None | list[Scalar | None]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value with the line of its name."""

    value: LeafValue
    line: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section of named leaves and sections; `line` is that of the section's own name."""

    line: int
    entries: "dict[str, Leaf | Section]" = field(default_factory=dict)

    def section(self, name: str) -> "Section":
        """The section below `name`; an empty one if missing."""
        entry = self.entries.get(name)
        return entry if isinstance(entry, Section) else Section(self.line)

    def leaves(self) -> Iterator[tuple[str, Leaf]]:
        """The entries that are values."""
        return ((name, entry) for name, entry in self.entries.items() if isinstance(entry, Leaf))

    def sections(self) -> "Iterator[tuple[str, Section]]":
        """The entries that are sections."""
        return ((name, entry) for name, entry in self.entries.items() if isinstance(entry, Section))


def as_list(value: object) -> list[Any]:
    """A list as it is, any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def to_plain(entry: Leaf | Section) -> object:
    """The entry without lines: dicts, lists and scalars."""
    if isinstance(entry, Leaf):
        return entry.value
    return {name: to_plain(below) for name, below in entry.entries.items()}


def merge_sections(over: Section, under: Section) -> Section:
    """Merge two sections: `over` wins name by name, in any case of letters; subsections are merged too.

    An empty value removes the one under it.
    """
    spelled = {fold(name): name for name in over.entries}
    entries = {name: entry for name, entry in under.entries.items() if fold(name) not in spelled}
    below = {spelled[fold(name)]: entry for name, entry in under.entries.items() if fold(name) in spelled}
    for name, entry in over.entries.items():
        other = below.get(name)
        if isinstance(entry, Section) and isinstance(other, Section):
            entries[name] = merge_sections(entry, other)
        elif isinstance(entry, Section) or entry.value is not None:
            entries[name] = entry
    return Section(over.line, entries)


def find_line(root: Section, path: tuple[str, ...]) -> int:
    """The line of the deepest name on the path that exists."""
    here = root
    for name in path:
        entry = here.entries.get(name)
        if entry is None:
            break
        if isinstance(entry, Leaf):
            return entry.line
        here = entry
    return here.line


#: A plain tree: names to subtrees, lists and scalars.
Tree = Mapping[str, object]


#: From a line on, the lines are those of a file from another line on; 0: of no file.
OriginRun = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class LineOrigins:
    """Where each line of a text was first written: edits keep the origins of the lines that they leave."""

    runs: tuple[OriginRun, ...]  #: sorted, the first from line 1 on

    @classmethod
    def from_file(cls, file: str) -> "LineOrigins":
        """Origins of a text that is a file."""
        return cls(((1, file, 1),))

    def find(self, line: int) -> tuple[str, int]:
        """File and line; line 0: an edit outside of files, and the file is the name of its version."""
        first, file, there = self.runs[max(0, bisect_right(self.runs, line, key=lambda run: run[0]) - 1)]
        return file, there + line - first if there else 0

    def follow(self, old: str, new: str, edit: str) -> "LineOrigins":
        """Origins of the text `new`, an edit of the text `old`; `edit` is that of new and changed lines."""
        before, after = old.split("\n"), new.split("\n")
        runs: list[OriginRun] = []
        for kind, i, _, j, end in SequenceMatcher(None, before, after).get_opcodes():
            if kind == "equal":
                runs += self._cut(i + 1, end - j, j + 1)
            elif end > j:
                runs.append((j + 1, edit, 0))
        return LineOrigins(tuple(_join_runs(runs)))

    def _cut(self, line: int, count: int, first: int) -> Iterator[OriginRun]:
        """The runs of `count` lines from `line` on, moved to the line `first`."""
        starts = {line, *(run[0] for run in self.runs if line < run[0] < line + count)}
        return ((start - line + first, *self.find(start)) for start in sorted(starts))


def _join_runs(runs: Sequence[OriginRun]) -> Iterator[OriginRun]:
    """The same without runs that continue the one before."""
    last: OriginRun | None = None
    for run in runs:
        start, file, line = run
        continued = last and file == last[1] and line == (last[2] + start - last[0] if last[2] else 0)
        if not continued:
            yield run
            last = run


def format_origin(file: str, line: int) -> str:
    """The place of a value as text: `resources.yaml:7`, or `version 2`."""
    return f"{file}:{line}" if line else file
