"""Changes of the configuration as lines: `+` is new, `-` goes, `~` becomes another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cs_config import show

#: What the service answers.
Answer = dict[str, Any]

#: Lines that are printed; machines get all.
_MOST = 100


def lines(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change."""
    for change in changes[:_MOST]:
        yield _line(change)
    if len(changes) > _MOST:
        yield f"… and {len(changes) - _MOST} more (--json tells all)"


def _line(change: Mapping[str, Any]) -> str:
    path = change["path"]
    if change["change"] == "removed":
        return f"- {path} = {written(change['before'])}"
    if change["change"] == "added":
        return f"+ {path} = {written(change['after'])}"
    return f"~ {path} = {written(change['after'])} (was {written(change['before'])})"


def written(value: Any) -> str:
    """A value or a whole section in one line, as it may stand in the file."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {written(below)}' for name, below in value.items())}}}"
    return show.written(value)
