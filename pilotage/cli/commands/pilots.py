"""`pilotage pilot`: run a pilot on this machine; `pilotage pilots`: list pilots and their success rates."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from pilotage.cli import client_settings, home_directory, options, output
from pilotage.cli.connection import connect
from pilotage.fabric.pilot import main as pilot_main

#: The pilot parses its own flags, since it also runs without this command line.
_ITS_OWN_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register_pilot(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pilot", context_settings=_ITS_OWN_FLAGS)(pilot)


def pilot(context: typer.Context, *, home: options.Home = None) -> None:
    """Run a pilot on this machine: --site S --ce C --queue Q; see `pilotage pilot --help`."""
    raise typer.Exit(pilot_main.main(context.args, _environment(context.args, home)))


def _environment(words: Sequence[str], home: Path | None) -> Mapping[str, str]:
    """The process environment, with the service from `client.env` if it names none.

    It names the home directory, so that the pilot can hide that from payloads.
    """
    if "PILOTAGE_URL" in os.environ or "--url" in words:
        return os.environ
    found = client_settings.load(home=home).home
    return {**home_directory.read_client_env(found), **os.environ, "PILOTAGE_HOME": str(found)}


Pilot = Mapping[str, Any]

_NUMBERS = ("count", "active", "with_jobs", "empty", "broken", "jobs", "quality")
_HEADINGS = ("#Pilots", "#Active", "#With jobs", "#Empty", "#Broken", "#Jobs", "#Quality")

Vo = Annotated[str | None, typer.Option(metavar="VO", help="Only pilots of this VO.")]
Site = Annotated[
    str | None, typer.Option(metavar="SITE", help="Only pilots at this site or submitted to it.")
]
Status = Annotated[
    str | None,
    typer.Option(
        metavar="STATUS,…", help="Only pilots with one of these statuses, such as Running or Aborted."
    ),
]


def register_pilots(app: typer.Typer) -> None:
    """Add the commands."""
    pilots = typer.Typer(help="List pilots, with their status and their success rates.")
    pilots.command("list")(list_pilots)
    pilots.command("show")(show)
    pilots.command("summary")(summary)
    app.add_typer(pilots, name="pilots")


def list_pilots(
    *,
    vo: Vo = None,
    site: Site = None,
    status: Status = None,
    limit: output.Limit = 1000,
    after: Annotated[
        str | None, typer.Option(metavar="STAMP", help="Only pilots after this one (next page).")
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List pilots, ordered by stamp."""
    filters = _filters(vo=vo, site=site, status=status)
    with connect(home=home, url=url) as client:
        found = output.read_pages(
            "pilots",
            lambda most, last: client.pilots(filters, limit=most, after=last),
            limit=limit,
            after=after,
        )
    found.emit(_table, as_json=as_json)


def show(
    stamp: Annotated[str, typer.Argument(metavar="STAMP", help="Stamp of the pilot.")],
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show one pilot, and if it failed the end of its output."""
    with connect(home=home, url=url) as client:
        pilot = client.pilot(stamp)
        wrote = client.pilot_output(stamp) if pilot["has_output"] else None
    output.emit({**pilot, "output": wrote}, as_json=as_json, render=lambda: _details(pilot, wrote))


def summary(
    *,
    by: Annotated[
        str,
        typer.Option(
            metavar="NAME,…", help="Group by: status, vo, site, ce, queue, empty_reason, submitted_by."
        ),
    ] = "queue",
    hours: Annotated[
        float,
        typer.Option(min=0, metavar="N", help="Only pilots that are active or ended in the last N hours."),
    ] = 24,
    vo: Vo = None,
    site: Site = None,
    status: Status = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Count pilots by status and outcome.

    Quality is the share of ended pilots that ran a job, among all that ran one, ended empty, or broke before.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    since = datetime.now(UTC) - timedelta(hours=hours)
    filters = _filters(vo=vo, site=site, status=status) | {"since": since.isoformat()}
    with connect(home=home, url=url) as client:
        found = client.pilot_summary(by=names, filters=filters)
    rows = ([*(row[name] for name in names), *map(row.get, _NUMBERS[:-1]), _share(row)] for row in found)
    headings = (*map(output.heading, names), *_HEADINGS)
    output.emit({"summary": found}, as_json=as_json, render=lambda: output.table(headings, rows))


def _filters(**given: str | None) -> dict[str, str]:
    return {name: value for name, value in given.items() if value is not None}


def _share(row: Mapping[str, Any]) -> str | None:
    return None if row["quality"] is None else f"{row['quality']:.0%}"


def _table(pilots: Sequence[Pilot]) -> RenderableType:
    headings = ("Stamp", "VO", "Status", "Queue", "Reference", "#Jobs", "Changed", "Reason")
    rows = (
        (
            *(pilot["stamp"], pilot["vo"], pilot["status"], _queue_text(pilot), pilot["reference"]),
            *(pilot["jobs"], output.ago(pilot["updated_at"]), _first_line(pilot["status_reason"])),
        )
        for pilot in pilots
    )
    return output.table(headings, rows)


def _queue_text(pilot: Pilot) -> str:
    """The queue of a pilot, or the number of candidates until a broker has chosen one."""
    if pilot["site"]:
        return f"{pilot['site']}/{pilot['ce']}/{pilot['queue']}"
    return f"one of {len(pilot['landings'])}" if pilot["landings"] else ""


def _first_line(reason: str) -> str:
    lines = reason.splitlines()
    return lines[0][:80] if lines else ""


def _details(pilot: Pilot, wrote: Mapping[str, Any] | None) -> RenderableType:
    left_out = {"site", "ce", "queue", "has_output"}
    facts = {name: value for name, value in pilot.items() if name not in left_out}
    return Group(output.facts(facts | {"queue": _queue_text(pilot)}, title="Pilot"), *_output_lines(wrote))


def _output_lines(wrote: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    for name, title in (("stdout", "Standard output"), ("stderr", "Standard error")):
        if wrote is not None and wrote[name]:
            yield Text(f"End of the {title.lower()}:\n{output.harmless(wrote[name])}")
