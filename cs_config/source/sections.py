"""The parsed text of a configuration: sections and leaves with their lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
