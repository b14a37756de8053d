"""Writer and editor of configuration YAML; `yaml_reader` reads the result back as the same tree.

Edits change a text only where the tree changes, so that comments and order stay. Single values are written in
one line: `8000`, `[el8, el9]`, `{Policy: level0}`, `null`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import yaml

from cs_config.source import yaml_reader
from cs_config.source.diff import is_equal
from cs_config.source.sections import to_plain
from cs_config.source.yaml_reader import YamlReading, looks_special
from requirements.errors import InvalidRequest, Problem


class _Dumper(yaml.CSafeDumper):
    """Quotes every text that our reader would parse as another type; writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (PyYAML names it)
        """Repeat shared values: the reader refuses anchors."""
        return True


# PyYAML quotes texts that match a resolver. These words are special in YAML 1.2 only.
_Dumper.add_implicit_resolver("!special", looks_special, list("-+.0123456789"))


def to_yaml(tree: Mapping[str, object], *, in_one_line: bool = False) -> str:
    """A configuration tree as YAML text: in blocks, or in one line with braces."""
    return yaml.dump(
        dict(tree),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=in_one_line,
        width=2**31 - 1 if in_one_line else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineEdit:
    """Replacement of the lines `first` up to `end` (not included), from 0, by entries from a column on."""

    first: int
    end: int
    entries: Mapping[str, object]
    column: int
    comment: str = ""  #: what follows a value of one line


class _NotInBlocksError(Exception):
    """A changed entry is in brackets or shares its lines with others."""


def edit_text(text: str, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Edit a text so that it contains another tree; rewrite it where that is not possible line by line."""
    return edit_and_read(text, before, after).text


def edit_and_read(text: str, before: Mapping[str, object], after: Mapping[str, object]) -> YamlReading:
    """Edit a text, and read the result."""
    lines = text.splitlines()
    try:
        edits = list(_line_edits(yaml.compose(text, Loader=yaml.CSafeLoader), before, after, lines))
    except _NotInBlocksError:
        return yaml_reader.read_yaml(to_yaml(after), "")
    # From the end, so that line numbers stay valid; at one position the outer section comes last.
    numbered = ((edit.first, edit.end, number) for number, edit in enumerate(edits))
    for first, end, number in sorted(numbered, reverse=True):
        written = to_yaml(edits[number].entries).splitlines() if edits[number].entries else []
        comment = edits[number].comment if len(written) == 1 else ""
        lines[first:end] = [" " * edits[number].column + line + comment for line in written]
    reading = yaml_reader.read_yaml("\n".join([*lines, ""]), "")
    is_right = not reading.problems and is_equal(to_plain(reading.root), after)
    return reading if is_right else yaml_reader.read_yaml(to_yaml(after), "")


def _line_edits(
    node: yaml.Node | None, before: Mapping[str, object], after: Mapping[str, object], lines: list[str]
) -> Iterator[_LineEdit]:
    if not _is_block(node):
        raise _NotInBlocksError
    for key, value in node.value:
        if key.value not in after:
            yield _replace_entry(key, value, {}, lines)
        elif not is_equal(old := before[key.value], new := after[key.value]):
            if isinstance(old, dict) and isinstance(new, dict) and new and _is_block(value):
                yield from _line_edits(value, old, new, lines)
            else:
                yield _replace_entry(key, value, {key.value: new}, lines)
    if new_entries := {name: each for name, each in after.items() if name not in before}:
        end = _last_line(node) + 1
        column = node.value[0][0].start_mark.column
        yield _LineEdit(first=end, end=end, entries=new_entries, column=column)


def _is_block(node: yaml.Node | None) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode) and not node.flow_style and bool(node.value)


def _replace_entry(
    key: yaml.Node, value: yaml.Node, entries: Mapping[str, object], lines: list[str]
) -> _LineEdit:
    first, last, column = key.start_mark.line, _last_line(value), key.start_mark.column
    if lines[first][:column].strip():
        raise _NotInBlocksError
    comment = lines[first][value.end_mark.column :] if last <= first else ""
    end = max(first, last) + 1
    return _LineEdit(first=first, end=end, entries=entries, column=column, comment=comment)


def _last_line(node: yaml.Node) -> int:
    """The last line with content of a node; its own end mark may be after comments."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        ends_before = node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line
        return int(node.end_mark.line) - ends_before
    last = node.value[-1]
    return max(map(_last_line, last if isinstance(last, tuple) else (last,)))


_NAME = "value"


def read_value(written: str, path: str) -> object:
    """Parse a single value, written as in the file; InvalidRequest if it is not one."""
    reading = yaml_reader.read_yaml(f"{_NAME}: {written}", "")
    tree = to_plain(reading.root)
    if reading.problems or not isinstance(tree, dict) or list(tree) != [_NAME]:
        why = reading.problems[0].message if reading.problems else "it is more than one value"
        raise InvalidRequest([Problem(path=path, message=f"{written!r:.200} is not a valid value: {why}")])
    return tree[_NAME]


def write_value(value: object) -> str:
    """Format a single value so that `read_value` restores it."""
    return to_yaml({_NAME: value}, in_one_line=True).rstrip("\n")[len(_NAME) + 3 : -1]
