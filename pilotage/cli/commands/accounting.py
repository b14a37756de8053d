"""`pilotage accounting`: resource usage of jobs, and causes of their waiting."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.cli.output import Entry
from requirements.job_fields import MOMENT

_HOUR = 3600.0
#: Causes of waiting that a table lists; the sum has all.
_CAUSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingFilters:
    """Filters of the sums, by their names in the HTTP interface."""

    to: Annotated[str | None, options.option("TIME", f"End (default: now): {MOMENT}.")] = None
    bucket: Annotated[
        str | None, options.option("LENGTH", "Separate sums for each hour, day, month or year.")
    ] = None
    vo: options.VoFilter = None
    site: options.SiteFilter = None
    owner: options.OwnerFilter = None
    status: Annotated[
        str | None, options.option("S1,S2", "Only jobs that ended in one of these, such as Done or Failed.")
    ] = None


def accounting(
    *,
    by: Annotated[
        str, options.option("NAME,…", "Group by: vo, site, ce, queue, owner, owner_group, status.")
    ] = "vo",
    since: Annotated[str, options.option("TIME", f"Start: {MOMENT}.", "--from")] = "7d",
    filters: AccountingFilters,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    service: ServiceOptions,
) -> None:
    """Sum jobs, wall time, CPU time and causes of waiting of the jobs that you may see.

    Ended jobs are counted within seconds, their waiting times some minutes later.

    Example: `pilotage accounting --by site,status --from 7d`.
    """
    if as_csv and service.as_json:
        raise WrongUsage("--csv and --json exclude each other")
    query = options.given_options(filters) | {"by": by, "from": since}
    with service.connect() as client:
        if as_csv:
            sys.stdout.write(client.accounting_csv(query))
            return
        answer = client.accounting(query)
    service.emit(answer, lambda: _table(answer))


def _table(answer: Mapping[str, Any]) -> RenderableType:
    names = [*(["at"] if answer["bucket"] else []), *answer["by"]]
    headings = ("#Jobs", "#Wall h", "#Core h", "#CPU h", "#Efficiency", "#Waited h", "Waited for")
    title = f"{output.local_time(answer['from'])} – {output.local_time(answer['to'])}"
    rows = (_cells(row, names) for row in answer["rows"])
    return output.table([*map(output.heading, names), *headings], rows, title=title)


def _cells(row: Entry, names: Sequence[str]) -> Sequence[object]:
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
