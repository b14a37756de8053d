"""`pilotage config history`, `diff` and `rollback`."""

from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import config_edit, config_lines, config_wanted, options, output
from pilotage.cli.config_lines import Answer
from pilotage.cli.connection import connect
from pilotage.cli.failures import WrongUsage

_AT = "Only versions that changed this path, something in it, or what it stands in."


def history(
    *,
    path: Annotated[str, typer.Option("--path", metavar="PATH", help=_AT)] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List the versions that changed what we may see, the newest first."""
    with connect(home=home, url=url) as client:
        versions = client.config_versions(limit=limit, path=path)
    rows = (
        (
            v["version"],
            output.local_time(v["created_at"]),
            v["author"],
            v["source"],
            _changed(v.get("paths")),
            v["message"],
        )
        for v in versions
    )
    headings = ("#Version", "Stored", "By", "From", "Changed", "Why")
    output.emit({"versions": versions}, as_json=as_json, render=lambda: output.table(headings, rows))


def _changed(paths: list[str] | None) -> str:
    if not paths:
        return ""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def diff(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Compare what is in force with this file.")
    ] = None,
    *,
    before: Annotated[
        int | None, typer.Option("--from", metavar="VERSION", help="Compare this version …")
    ] = None,
    after: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", help="… with this one; else with the newest.")
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Say what differs between two versions, or what a file would change; nothing is changed."""
    if (file is None) == (before is None):
        raise WrongUsage("say a FILE, or --from VERSION")
    with connect(home=home, url=url) as client:
        if file is not None:
            wanted = config_wanted.of_file(client, file)
            changes: list[Answer] = config_wanted.changes(wanted.differences)
            data: Answer = {"from_version": wanted.version, "file": str(file), "changes": changes}
        else:
            data = client.config_diff(before or 0, after)
    lines = list(config_lines.lines(data["changes"])) or ["no difference"]
    output.emit(data, as_json=as_json, render=lambda: output.escape("\n".join(lines)))


def rollback(
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="See `config history`.")],
    *,
    message: config_edit.Message = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Make what we may change as it was in an older version: for operators that is everything."""
    with connect(home=home, url=url) as client:
        answer = client.rollback_config(version, message=message or "")
    lines = [*config_lines.lines(answer["changes"]), f"version {answer['version']} is in force"]
    output.emit(answer, as_json=as_json, render=lambda: output.escape("\n".join(lines)))
