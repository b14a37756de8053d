"""`pilotage config show`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import show as cs_show
from pilotage.cli import options, output, running_configuration
from pilotage.cli.connection import connect
from pilotage.cli.failures import WrongUsage

_PATH_HELP = "Such as Operations or Resources/Sites/LCG.CERN.ch; also Site, Site/CE, Site/CE/Queue."
_VO_HELP = "What holds for this VO: effective parameters of a site, CE or queue; options of Operations."


def show(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_PATH_HELP, show_default=False)] = "",
    *,
    vo: Annotated[str | None, typer.Option(metavar="VO", help=_VO_HELP)] = None,
    origin: Annotated[
        bool,
        typer.Option("--origin", help="Say where each value is written; of a queue also what it inherits."),
    ] = False,
    blame: Annotated[
        bool,
        typer.Option(
            "--blame", help="Say also who wrote each value, when, and how many waiting jobs it keeps away."
        ),
    ] = False,
    file: running_configuration.InsteadOfIt = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show the configuration in force, or a part of it."""
    if blame:
        if file is not None:
            raise WrongUsage("--blame asks the service, --file looks into a file: one of the two")
        _blame(path, vo, as_json=as_json, home=home, url=url)
        return
    config = running_configuration.or_of(file, home=home, url=url)
    if vo is None and origin and cs_show.is_queue(config, path):
        vo = ""
    lines = cs_show.show(config, path, vo)
    if not lines and not as_json:
        _say_nothing(path)
        return
    if as_json:
        values = {line.path: line.as_json()["value"] for line in lines}
        output.emit([line.as_json() for line in lines] if origin else values, as_json=True, render=str)
    elif origin:
        rows = ((line.path, cs_show.written(line.value), line.origin) for line in lines)
        output.console().print(output.table(("Name", "Value", "Written in"), rows))
    else:
        output.console().print(output.escape("\n".join(map(str, lines))))


def _say_nothing(path: str) -> None:
    typer.echo(f"{path}: nothing is written there; --vo VO shows what a VO gets", err=True)


def _blame(path: str, vo: str | None, *, as_json: bool, home: Path | None, url: str | None) -> None:
    with connect(home=home, url=url) as client:
        answer = client.config_blame(path, vo)
    if not answer["values"] and not as_json:
        _say_nothing(path)
        return
    rows = (
        (
            each["path"],
            cs_show.written(each["value"]),
            each["origin"],
            (each["since"] or {}).get("author", ""),
            output.local_time(each["since"]["stored_at"]) if each["since"] else "",
            (each["since"] or {}).get("version", ""),
            (each["excludes"] or {}).get("jobs") or "",
        )
        for each in answer["values"]
    )
    headings = ("Name", "Value", "Written in", "By", "Stored", "#Version", "#Keeps away")
    output.emit(answer, as_json=as_json, render=lambda: output.table(headings, rows))
