"""`pilotage pilot`: run a pilot on this machine; `pilotage pilots`: list pilots and their success rates."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import harmless
from pilotage.cli.output import Column, Entry
from pilotage.client import connection
from pilotage.fabric.pilot import main as pilot_main


def pilot(context: typer.Context, *, home: options.Home = None) -> None:
    """Run a pilot on this machine: --site S --ce C --queue Q; see `pilotage pilot --help`.

    Example: `pilotage pilot --site LCG.CERN.ch --ce ce1 --queue long`.
    """
    raise typer.Exit(pilot_main.main(context.args, _environment(context.args, home)))


def _environment(words: Sequence[str], home: Path | None) -> Mapping[str, str]:
    """The process environment, with the service from `client.env` if it names none.

    It names the home directory, so that the pilot can hide that from payloads.
    """
    if "PILOTAGE_URL" in os.environ or "--url" in words:
        return os.environ
    found = connection.load_client_settings(home=home).home
    return {**connection.read_client_env(found), **os.environ, "PILOTAGE_HOME": str(found)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotFilters:
    """Filters of pilots, by their names in the HTTP interface."""

    vo: Annotated[str | None, options.option("VO", "Only pilots of this VO.")] = None
    site: Annotated[str | None, options.option("SITE", "Only pilots at this site or submitted to it.")] = None
    status: Annotated[
        str | None,
        options.option("STATUS,…", "Only pilots with one of these statuses, such as Running or Aborted."),
    ] = None


def list_pilots(
    *,
    filters: PilotFilters,
    limit: output.Limit = 1000,
    after: Annotated[str | None, options.option("STAMP", "Only pilots after this one (next page).")] = None,
    service: ServiceOptions,
) -> None:
    """List pilots, ordered by stamp.

    Example: `pilotage pilots list --site LCG.CERN.ch --status Failed,Aborted`.
    """
    given = options.given_options(filters)
    with service.connect() as client:
        found = output.read_pages("pilots", partial(client.pilots, given), limit=limit, after=after)
    found.emit(_PILOTS, as_json=service.as_json)


def show(
    stamp: Annotated[str, options.argument("STAMP", "Stamp of the pilot.")], *, service: ServiceOptions
) -> None:
    """Show one pilot, the end of its log, and if it failed the end of its output.

    Example: `pilotage pilots show a1b2c3`.
    """
    with service.connect() as client:
        pilot = client.pilot(stamp)
        wrote = client.pilot_output(stamp) if pilot["has_output"] or pilot.get("has_log") else None
    service.emit({**pilot, "output": wrote}, lambda: _details(pilot, wrote))


#: Hours of a summary: eleven years. A time far enough in the past cannot be represented.
_MOST_HOURS = 100_000


def summary(
    *,
    by: Annotated[
        str,
        options.option("NAME,…", "Group by: status, vo, site, ce, queue, node, empty_reason, submitted_by."),
    ] = "queue",
    hours: Annotated[
        float,
        typer.Option(
            min=0,
            max=_MOST_HOURS,
            metavar="N",
            help="Only pilots that are active or ended in the last N hours.",
        ),
    ] = 24,
    filters: PilotFilters,
    service: ServiceOptions,
) -> None:
    """Count pilots by status and outcome.

    Quality is the share of pilots at which a job ended, well or not, among these, empty ones and those that
    broke before. Of jobs that ended not well, Failed jobs is the number.

    Example: `pilotage pilots summary --by queue,empty_reason --hours 24`.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    since = datetime.now(UTC) - timedelta(hours=hours)
    given = options.given_options(filters) | {"since": since.isoformat()}
    columns = {**{output.heading(name): name for name in names}, **OUTCOMES}
    service.show(
        lambda client: {"summary": client.pilot_summary(by=names, filters=given)},
        lambda found: (
            output.list_table(columns, found["summary"])
            if found["summary"]
            else f"no pilot was active or ended in the last {hours:g} h: only those that a director sent, or "
            "that have a stamp, are listed"
        ),
    )


#: Columns of a summary.
OUTCOMES: Mapping[str, Column] = {
    "#Pilots": "count",
    "#Active": "active",
    "#With jobs": "with_jobs",
    "#Empty": "empty",
    "#Broken": "broken",
    "#Jobs": "jobs",
    "#Failed jobs": lambda row: row.get("failed_jobs"),  # not of a service of 1.0.0
    "#Quality": lambda row: None if row["quality"] is None else f"{row['quality']:.0%}",
}


def _queue_text(pilot: Entry) -> str:
    """The queue of a pilot, or the number of candidates until a broker has chosen one."""
    if pilot["site"]:
        return f"{pilot['site']}/{pilot['ce']}/{pilot['queue']}"
    return f"one of {len(pilot['possible_queues'])}" if pilot["possible_queues"] else ""


_PILOTS: Mapping[str, Column] = {
    "Stamp": "stamp",
    "VO": "vo",
    "Status": "status",
    "Queue": _queue_text,
    "Reference": "reference",
    "#Jobs": "jobs",
    "Changed": lambda pilot: output.ago(pilot["updated_at"]),
    "Reason": lambda pilot: ", ".join(filter(None, pilot["status_reason"].splitlines()))[:80],
}


def _details(pilot: Entry, wrote: Mapping[str, Any] | None) -> RenderableType:
    left_out = {"site", "ce", "queue", "has_output", "has_log"}
    facts = {name: value for name, value in pilot.items() if name not in left_out}
    facts |= {"queue": _queue_text(pilot), "status_reason": pilot["status_reason"].strip()}
    return Group(output.facts(facts, title="Pilot"), *_output_lines(wrote))


def _output_lines(wrote: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    for name, title in (("stdout", "Standard output"), ("stderr", "Standard error"), ("log", "Log")):
        if wrote is not None and wrote.get(name):
            yield Text(f"End of the {title.lower()}:\n{harmless(wrote[name])}")
