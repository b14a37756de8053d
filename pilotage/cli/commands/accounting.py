"""`pilotage accounting`: resource usage of jobs, and causes of their waiting."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from pilotage.cli import job_ids, options, output
from pilotage.cli.connection import connect
from pilotage.cli.errors import WrongUsage

Row = Mapping[str, Any]

_MOMENT = "a time, a date, or how long ago: 24h, 7d, 12w"
_HOUR = 3600.0
#: Causes of waiting that a table lists; the sum has all.
_CAUSES = 2

By = Annotated[
    str, typer.Option(metavar="NAME,…", help="Group by: vo, site, ce, queue, owner, owner_group, status.")
]
Since = Annotated[str, typer.Option("--from", metavar="TIME", help=f"Start: {_MOMENT}.")]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End (default: now).")]
Bucket = Annotated[
    str | None,
    typer.Option(metavar="LENGTH", help="Separate sums for each hour, day, month or year."),
]
Status = Annotated[
    str | None,
    typer.Option(metavar="S1,S2", help="Only jobs that ended in one of these, such as Done or Failed."),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("accounting")(accounting)


def accounting(
    *,
    by: By = "vo",
    since: Since = "7d",
    until: Until = None,
    bucket: Bucket = None,
    vo: options.VoFilter = None,
    site: options.SiteFilter = None,
    owner: options.OwnerFilter = None,
    status: Status = None,
    as_csv: AsCsv = False,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Sum jobs, wall time, CPU time and causes of waiting of the jobs that you may see.

    Ended jobs are counted within seconds, their waiting times some minutes later.
    """
    if as_csv and as_json:
        raise WrongUsage("--csv and --json exclude each other")
    query = job_ids.read_filters(bucket=bucket, to=until, vo=vo, site=site, owner=owner, status=status)
    query |= {"by": by, "from": since}
    with connect(home=home, url=url) as client:
        if as_csv:
            sys.stdout.write(client.accounting_csv(query))
            return
        answer = client.accounting(query)
    output.emit(answer, as_json=as_json, render=lambda: _table(answer))


def _table(answer: Mapping[str, Any]) -> RenderableType:
    names = [*(["at"] if answer["bucket"] else []), *answer["by"]]
    headings = ("#Jobs", "#Wall h", "#Core h", "#CPU h", "#Efficiency", "#Waited h", "Waited for")
    title = f"{output.local_time(answer['from'])} – {output.local_time(answer['to'])}"
    rows = (_cells(row, names) for row in answer["rows"])
    return output.table([*map(output.heading, names), *headings], rows, title=title)


def _cells(row: Row, names: Sequence[str]) -> Sequence[object]:
    values = (output.local_time(row["at"]) if name == "at" else row[name] for name in names)
    efficiency = row["cpu_efficiency"]
    hours = [_hours(row[name]) for name in ("wall_seconds", "core_seconds")]
    waited: Mapping[str, float] = row["waited"]
    return [
        *values,
        row["jobs"],
        *hours,
        None if efficiency is None else _hours(row["cpu_seconds"]),
        None if efficiency is None else f"{100 * efficiency:.1f} %",
        _hours(sum(waited.values())),
        ", ".join(f"{cause} {_hours(seconds)}" for cause, seconds in list(waited.items())[:_CAUSES]),
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR:.1f}"
