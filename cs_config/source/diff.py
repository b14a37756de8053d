"""Differences between two trees, path by path."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: The value at a path of a tree: a section, a list or a scalar, or ABSENT.
Entry = object


#: Sections with a subsection per VO, or per group of one.
_OF_VOS: Final = frozenset({"VOs", "Operations", "Registry", "VO", "Groups"})


class _Absent:
    """Marks a missing entry; a null is not missing: it removes the inherited value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


class DifferenceKind(StrEnum):
    """Kind of change at a path."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A path with different values in two trees."""

    names: tuple[str, ...]  #: from the top
    before: Entry  #: ABSENT: no entry
    after: Entry  #: ABSENT: no entry

    @property
    def path(self) -> str:
        """The names joined by `/`."""
        return "/".join(self.names)

    @property
    def kind(self) -> DifferenceKind:
        """Kind of change at the path."""
        if self.before is ABSENT:
            return DifferenceKind.ADDED
        return DifferenceKind.REMOVED if self.after is ABSENT else DifferenceKind.CHANGED

    def as_json(self) -> dict[str, object]:
        """The difference as JSON; a missing side is omitted."""
        sides = {"before": self.before, "after": self.after}
        present = {name: entry for name, entry in sides.items() if entry is not ABSENT}
        return {"path": self.path, "change": self.kind.value, **present}


def is_equal(one: Entry, other: Entry) -> bool:
    """Whether two entries are equal; the order of names is ignored, and True is not 1."""
    if one is other:  # as are the sections that an edit leaves
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    return repr(one) == repr(other)


def compare(
    before: Mapping[str, Entry], after: Mapping[str, Entry], names: tuple[str, ...] = ()
) -> tuple[Difference, ...]:
    """All differences of two trees, below `names`; a section that only one of them has is a single one."""
    found: list[Difference] = []
    for name in (*before, *(name for name in after if name not in before)):
        old, new = before.get(name, ABSENT), after.get(name, ABSENT)
        if isinstance(old, dict) and isinstance(new, dict):
            found += () if old is new else compare(old, new, (*names, name))
        elif not is_equal(old, new):
            found.append(Difference(names=(*names, name), before=old, after=new))
    return tuple(found)


def list_leaves(difference: Difference) -> Iterator[tuple[str, ...]]:
    """The paths of all leaves that differ: of a section, of everything in it."""
    found = {
        path: None
        for side in (difference.before, difference.after)
        for path, _ in iterate_leaves(side, difference.names)
    }
    yield from found


def list_paths(found: Iterable[Difference]) -> tuple[str, ...]:
    """The paths of the differences, split so that each belongs to one VO at most."""
    return tuple(each.path for difference in found for each in split_by_vo(difference))


def split_by_vo(difference: Difference) -> Iterator[Difference]:
    """The difference, or its parts, so that each concerns one VO at most."""
    sides = (difference.before, difference.after)
    sections = [side for side in sides if isinstance(side, dict)]
    if difference.names[-1] not in _OF_VOS or not any(sections):
        yield difference
        return
    for name in dict.fromkeys(name for section in sections for name in section):
        entries = [side.get(name, ABSENT) if isinstance(side, dict) else ABSENT for side in sides]
        yield from split_by_vo(
            Difference(names=(*difference.names, name), before=entries[0], after=entries[1])
        )


def iterate_leaves(entry: Entry, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Entry]]:
    """The values and empty sections of an entry with their paths; none if it is absent."""
    if isinstance(entry, dict) and entry:
        for name, below in entry.items():
            yield from iterate_leaves(below, (*names, name))
    elif entry is not ABSENT:
        yield names, entry


def count_values(entry: Entry) -> int:
    """The number of values of an entry; each item of a list is one, and what is empty or removed."""
    below = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list | tuple) else ()
    return sum(map(count_values, below)) or 1


def count_characters(entry: Entry) -> int:
    """The characters of all values and names of an entry."""
    if isinstance(entry, dict):
        return sum(len(name) + count_characters(below) for name, below in entry.items())
    if isinstance(entry, list | tuple):
        return sum(map(count_characters, entry))
    return 0 if entry is ABSENT else len(str(entry))


def format_entry(entry: Entry) -> str:
    """A value or a whole section as in a YAML file, in one line."""
    if isinstance(entry, Mapping):
        return f"{{{', '.join(f'{name}: {format_entry(below)}' for name, below in entry.items())}}}"
    if isinstance(entry, list | tuple):
        return f"[{', '.join(map(format_entry, entry))}]"
    if isinstance(entry, str):
        return json.dumps(entry, ensure_ascii=False) if _is_quoted(entry) else entry
    return json.dumps(entry) if entry is None or isinstance(entry, bool) else str(entry)


def format_line(path: str, entry: Entry) -> str:
    """The value at a path, or alone where the path is that of the value itself."""
    return f"{path} = {format_entry(entry)}" if path else format_entry(entry)


def _is_quoted(text: str) -> bool:
    """Whether a text needs quotes to be told from another value: `"8000"`, `"true"`."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
