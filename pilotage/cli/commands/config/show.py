"""`pilotage config show`, `check`, `diff`, `history`, `temporary` and `rollback`.

Changes are lines: `+` added, `-` removed, `~` a new value. What reads a configuration is imported where a
file is read: it takes longer than a request.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from cs_config.errors import ConfigError
from cs_config.source import diff as diffs
from cs_config.source.diff import format_entry, format_line
from pilotage.cli import options, output, reason_options
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WRONG, WrongUsage, one_line
from pilotage.cli.output import Column, Entry
from requirements.errors import format_count

if TYPE_CHECKING:
    from cs_config.tree.configuration import Configuration

_PATH_HELP = "Path such as Operations or Resources/Sites/LCG.CERN.ch; also Site, Site/CE, Site/CE/Queue."
_VO_HELP = "Effective values for this VO: parameters of a site, CE or queue; options of Operations."


def show(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_PATH_HELP, show_default=False)] = "",
    *,
    vo: Annotated[str | None, options.option("VO", _VO_HELP)] = None,
    origin: Annotated[
        bool,
        typer.Option(
            "--origin", help="Also show where each value is set; for a queue, include inherited values."
        ),
    ] = False,
    blame: Annotated[
        bool,
        typer.Option(
            "--blame", help="Also show who set each value, when, and how many waiting jobs it excludes."
        ),
    ] = False,
    file: options.ConfigFile = None,
    service: ServiceOptions,
) -> None:
    """Show the configuration in force, or a part of it.

    Example: `pilotage config show Resources/Sites/LCG.CERN.ch --vo cms --blame`.
    """
    if blame:
        if file is not None:
            raise WrongUsage(
                "--blame and --file exclude each other: --blame needs the history of the service"
            )
        _blame(path, vo, service)
        return
    if file is not None:
        from cs_config import validate
        from cs_config.editing.show import list_lines

        lines = list_lines(validate.load_file(file), path, vo, inherited=origin)
        values: list[Entry] = [line.as_json() for line in lines]
    else:
        with service.connect() as client:
            values = list(client.config_values(path, vo, inherited=origin))
    if not values and not service.as_json:
        _nothing_message(path)
    elif origin:
        service.emit(values, lambda: output.list_table(_VALUES, values))
    else:
        texts = (format_line(each["path"], each["value"]) for each in values)
        data = {each["path"]: each["value"] for each in values}
        service.emit(data, lambda: "\n".join(texts))


def _nothing_message(path: str) -> None:
    typer.echo(f"{path}: nothing is set there; --vo VO shows effective values", err=True)


def _blame(path: str, vo: str | None, service: ServiceOptions) -> None:
    with service.connect() as client:
        answer = client.config_blame(path, vo)
    if not answer["values"] and not service.as_json:
        _nothing_message(path)
        return
    service.emit(answer, lambda: output.list_table(_BLAME, answer["values"]))


_VALUES: Mapping[str, Column] = {
    "Name": "path",
    "Value": lambda each: format_entry(each["value"]),
    "Written in": "origin",
}
_BLAME: Mapping[str, Column] = {
    **_VALUES,
    "By": lambda each: (each["since"] or {}).get("author"),
    "Stored": lambda each: output.local_time((each["since"] or {}).get("stored_at")),
    "#Version": lambda each: (each["since"] or {}).get("version"),
    "#Keeps away": lambda each: (each["excludes"] or {}).get("jobs") or None,
}


def check(
    file: Annotated[Path, options.argument("FILE", "YAML with Resources, Operations and Registry.")],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Check a file, without a service: list all errors with their lines and corrections.

    The exit status is 2 if there are errors, 0 if there are only warnings.

    Example: `pilotage config check resources.yaml`.
    """
    from cs_config import validate

    found = validate.report(validate.read_bytes(file), str(file))
    if as_json:
        data = {
            "valid": found.configuration is not None,
            "problems": [problem.as_json() for problem in found.errors],
            "warnings": [problem.as_json() for problem in found.warnings],
        }
        output.emit(data, as_json=True, render=str)
    if found.errors and not as_json:
        raise ConfigError(found.errors)
    warnings = (f"warning: {one_line(str(problem))}" for problem in found.warnings)
    for line in () if as_json else _cut(warnings, len(found.warnings)):
        typer.echo(f"pilotage: {line}", err=True)
    if found.configuration is None:
        raise typer.Exit(WRONG)
    if not as_json:
        typer.echo(f"{file}: {_count_nodes(found.configuration)}; nothing is wrong")


def _count_nodes(config: "Configuration") -> str:
    ces = {(address.site, address.ce) for address in config.addresses}
    sizes = {"site": config.sites, "CE": ces, "queue": config.addresses, "VO": config.vos}
    return ", ".join(format_count(len(each), noun) for noun, each in sizes.items())


Message = Annotated[
    str | None, reason_options.reason_option("Reason, stored in the history.", "--message", "-m")
]
_AT = "Only changes of this path, of something below it, or of a section that contains it."


def history(
    *,
    path: Annotated[str, options.option("PATH", _AT, "--path")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Rows to show.")] = 20,
    service: ServiceOptions,
) -> None:
    """List the versions with changes that you may see, newest first.

    Example: `pilotage config history --path Resources/Sites/LCG.CERN.ch`.
    """
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
    """List temporary changes (`config set --for`) with the values to be restored, the soonest first.

    Example: `pilotage config temporary`.
    """
    service.show(
        lambda client: {"values": client.config_temporary(path=path)},
        lambda found: output.list_table(_TEMPORARY, found["values"]),
    )


def _format_side(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda value: diffs.format_entry(value[name]) if name in value else ""


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
    """Restore an older version: of everything for operators, else of the parts that you may change.

    Example: `pilotage config rollback 7 --message 'the limit was too low'`.
    """
    with service.connect() as client:
        answer = client.rollback_config(version, message=message or "")
    lines = [
        *change_lines(answer["changes"]),
        *warning_lines(answer),
        f"version {answer['version']} is in force",
    ]
    service.emit(answer, lambda: "\n".join(lines))


#: Lines to print; JSON has all.
_MOST = 100


def warning_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """A line for each of the first new warnings, and one with the number of the others."""
    for each in answer.get("warnings", ()):
        meant = f", did you mean {each['suggestion']}?" if each.get("suggestion") else ""
        yield f"warning: {each['path']}: {each['message']}{meant}"
    if more := answer.get("more_warnings"):
        yield f"… and {format_count(more, 'more warning')}"


def _cut(lines: Iterable[str], total: int) -> Iterator[str]:
    """The first of so many lines, and one with the number of the others."""
    yield from islice(lines, _MOST)
    if total > _MOST:
        yield f"… and {total - _MOST} more (--json lists all)"


def change_lines(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change."""
    lines = (
        change_line(
            each["path"],
            diffs.ABSENT if each["change"] == "added" else each["before"],
            diffs.ABSENT if each["change"] == "removed" else each["after"],
        )
        for each in changes
    )
    return _cut(lines, len(changes))


def change_line(name: str, before: Any, after: Any) -> str:
    """A line for one change; `ABSENT`: no value."""
    if after is diffs.ABSENT:
        return f"- {name} = {diffs.format_entry(before)}"
    if before is diffs.ABSENT:
        return f"+ {name} = {diffs.format_entry(after)}"
    return f"~ {name} = {diffs.format_entry(after)} (was {diffs.format_entry(before)})"
