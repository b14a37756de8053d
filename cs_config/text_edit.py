"""Changing a text of the configuration where the tree changes, so that comments and order stay."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import yaml

from cs_config import source, yaml_text
from cs_config.differences import equal
from cs_config.sections import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """Lines `first` up to `end` (not included), from 0, become others."""

    first: int
    end: int
    lines: tuple[str, ...]


class _NotInBlocksError(Exception):
    """What changes stands in brackets or beside something else: no lines of its own."""


def edited(text: str, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """The text changed to say another tree; written anew where that is not possible line by line.

    Args:
        text: A configuration without faults.
        before: What it says.
        after: What it has to say.
    """
    lines = text.splitlines()
    try:
        edits = list(_edits(yaml.compose(text, Loader=yaml.CSafeLoader), before, after, lines))
    except _NotInBlocksError:
        return yaml_text.to_yaml(after)
    # From the end, so that lines keep their numbers; at one place the outer section comes last.
    numbered = ((edit.first, edit.end, number) for number, edit in enumerate(edits))
    for first, end, number in sorted(numbered, reverse=True):
        lines[first:end] = edits[number].lines
    changed = "\n".join([*lines, ""])
    reading = source.read(changed, "")
    is_right = not reading.problems and equal(plain(reading.root), after)
    return changed if is_right else yaml_text.to_yaml(after)


def _edits(
    node: yaml.Node | None, before: Mapping[str, object], after: Mapping[str, object], lines: list[str]
) -> Iterator[_Edit]:
    if not _is_block(node):
        raise _NotInBlocksError
    for key, value in node.value:
        if key.value not in after:
            yield _replaced(key, value, (), lines)
        elif not equal(old := before[key.value], new := after[key.value]):
            if isinstance(old, dict) and isinstance(new, dict) and new and _is_block(value):
                yield from _edits(value, old, new, lines)
            else:
                written = _written({key.value: new}, key.start_mark.column)
                yield _replaced(key, value, written, lines)
    if new_entries := {name: each for name, each in after.items() if name not in before}:
        end = _last_line(node) + 1
        yield _Edit(first=end, end=end, lines=_written(new_entries, node.value[0][0].start_mark.column))


def _is_block(node: yaml.Node | None) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode) and not node.flow_style and bool(node.value)


def _replaced(key: yaml.Node, value: yaml.Node, written: tuple[str, ...], lines: list[str]) -> _Edit:
    first, last = key.start_mark.line, max(key.start_mark.line, _last_line(value))
    if lines[first][: key.start_mark.column].strip():
        raise _NotInBlocksError
    if first == last and len(written) == 1:  # a comment behind it stays
        written = (written[0] + lines[first][value.end_mark.column :],)
    return _Edit(first=first, end=last + 1, lines=written)


def _last_line(node: yaml.Node) -> int:
    """The line in which the last word of a node stands; its own mark may be behind comments."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        ends_before = node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line
        return int(node.end_mark.line) - ends_before
    last = node.value[-1]
    return max(map(_last_line, last if isinstance(last, tuple) else (last,)))


def _written(entries: Mapping[str, object], column: int) -> tuple[str, ...]:
    return tuple(" " * column + line for line in yaml_text.to_yaml(entries).splitlines())
