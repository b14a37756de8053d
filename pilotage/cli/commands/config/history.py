"""`pilotage config history` and `rollback`, and changes as lines: `+` added, `-` removed, `~` a new value.

Imports nothing that reads a configuration: that would take longer than the request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from cs_config.versions import diff
from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.output import Column

Message = Annotated[str | None, typer.Option("--message", "-m", help="Reason, stored in the history.")]
_AT = "Only changes of this path, of something below it, or of a section that contains it."


def history(
    *,
    path: Annotated[str, options.option("PATH", _AT, "--path")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows to show.")] = 20,
    service: ServiceOptions,
) -> None:
    """List the versions with changes that you may see, newest first."""
    service.show(
        lambda client: {"versions": client.config_versions(limit=limit, path=path)},
        _history_table,
    )


def _history_table(found: Mapping[str, Any]) -> RenderableType:
    versions = found["versions"]
    are_temporary = any(version.get("reverts_at") for version in versions)
    return output.list_table({**_VERSIONS, **(_REVERTS if are_temporary else {})}, versions)


def _format_paths(paths: list[str] | None) -> str:
    if not paths:
        return ""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


_VERSIONS: Mapping[str, Column] = {
    "#Version": "version",
    "Stored": lambda version: output.local_time(version["created_at"]),
    "By": "author",
    "From": "source",
    "Changed": lambda version: _format_paths(version.get("paths")),
    "Why": "message",
}
_REVERTS: Mapping[str, Column] = {
    "Reverts": lambda version: output.local_time(version.get("reverts_at")),
}


def list_temporary(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_AT, show_default=False)] = "",
    *,
    service: ServiceOptions,
) -> None:
    """List temporary changes (`config set --for`) with the values to be restored, the soonest first."""
    service.show(
        lambda client: {"values": client.config_temporary(path=path)},
        lambda found: output.list_table(_TEMPORARY, found["values"]),
    )


def _format_side(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda value: diff.format_entry(value[name]) if name in value else ""


_TEMPORARY: Mapping[str, Column] = {
    "Path": "path",
    "Value": _format_side("value"),
    "Comes back": _format_side("restored"),
    "Reverts": lambda value: output.local_time(value["reverts_at"]),
    "#Version": "version",
    "By": "author",
    "Problem": "problem",
}


def rollback(
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version, see `config history`.")],
    *,
    message: Message = None,
    service: ServiceOptions,
) -> None:
    """Restore an older version: of everything for operators, else of the parts that you may change."""
    with service.connect() as client:
        answer = client.rollback_config(version, message=message or "")
    lines = [*change_lines(answer["changes"]), f"version {answer['version']} is in force"]
    service.emit(answer, lambda: "\n".join(lines))


#: Lines to print; JSON has all.
_MOST = 100


def change_lines(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change."""
    for change in changes[:_MOST]:
        before = diff.ABSENT if change["change"] == "added" else change["before"]
        after = diff.ABSENT if change["change"] == "removed" else change["after"]
        yield change_line(change["path"], before, after)
    if len(changes) > _MOST:
        yield f"… and {len(changes) - _MOST} more (--json lists all)"


def change_line(name: str, before: Any, after: Any) -> str:
    """A line for one change; `ABSENT`: no value."""
    if after is diff.ABSENT:
        return f"- {name} = {diff.format_entry(before)}"
    if before is diff.ABSENT:
        return f"+ {name} = {diff.format_entry(after)}"
    return f"~ {name} = {diff.format_entry(after)} (was {diff.format_entry(before)})"
