"""`pilotage job list` and `top`: tables of jobs by the fields of `requirements.job_fields`, also redrawn."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused
from pilotage.cli.output import Column, Entry, PagedList
from pilotage.client import waiting
from pilotage.client.api import ApiError, ServiceAway, ServiceClient, is_passing
from requirements.errors import format_count, require_names
from requirements.job_fields import BRIEF, FIELDS, FILTERED, FILTERS, JOB_GROUP, SITE, AnyField
from requirements.states import FINAL, JobStatus

_FORBIDDEN = 403
#: Seconds between two drawings.
_PAUSE = 2.0

#: The fields that lists may show, by their names and those of their options.
_SHOWABLE: Mapping[str, AnyField] = {
    name: field
    for field in FIELDS
    if field.is_answered
    for name in (
        field.name,
        *(each.option for key, each in FILTERS.items() if FILTERED[key] is field and len(field.filters) == 1),
    )
}
#: Short names beside these.
_ALIASES: Mapping[str, str] = {"id": "job_id", "age": "submitted_at"}

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Draw it anew every two seconds, on a terminal, until Ctrl-C.")
]


def list_jobs(
    ids: options.JobIds = None,
    *,
    filters: options.JobFilters,
    limit: output.Limit = 50,
    after: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Only jobs behind this page: `next` of it.")
    ] = None,
    by: Annotated[
        str | None, options.option("FIELD,…", "Count jobs by status, site, vo, owner, minor_status …")
    ] = None,
    columns: Annotated[
        str | None, options.option("FIELD,…", "Columns, such as id,name,group,status,exit_code,site,age.")
    ] = None,
    sort: Annotated[
        str | None, options.option("FIELD", "Sort by a field such as exit_code; -exit_code: highest first.")
    ] = None,
    watch: Watch = False,
    service: ServiceOptions,
) -> None:
    """List jobs, newest first by default, or count them by some of their fields.

    Example: `pilotage job list --group scan --status Failed --columns id,name,exit_code,site`.
    """
    wanted, given = options.parse_ids(ids), options.given_options(filters)
    if sort is not None:
        given["sort"] = sort[: sort.startswith("-")] + find_field("--sort", sort.removeprefix("-")).name
    shown = parse_columns(columns)
    with service.connect() as client:
        if by is not None:
            names = [name.strip() for name in by.split(",")]
            read: Callable[[], PagedList] = partial(_count, client, names, given)
            shown = {**{output.heading(name): name for name in names}, "#Jobs": "count"}
        elif wanted:
            read = partial(_fetch, client, wanted)
        else:
            read = partial(_list_visible, client, given, limit, after=after)
        if watch and not service.as_json:
            draw_repeatedly(lambda: output.list_table(shown, read().entries))
        elif by is not None:
            rows = read().entries
            service.emit({"summary": rows}, lambda: output.list_table(shown, rows))
        else:
            read().emit(shown, as_json=service.as_json)


def parse_columns(typed: str | None) -> Mapping[str, Column]:
    """The columns of the fields that were typed, or those of a brief list."""
    fields = BRIEF if typed is None else [find_field("--columns", each.strip()) for each in typed.split(",")]
    return dict(map(_describe_column, fields))


def find_field(option: str, name: str) -> AnyField:
    """The field of a list by its name, or by that of its option; `InvalidRequest` if there is none."""
    known = _ALIASES.get(name.lower(), name.lower().replace("-", "_"))
    by_name = {each.replace("-", "_"): field for each, field in _SHOWABLE.items()}
    require_names(option, [known], sorted(by_name))
    return by_name[known]


def _describe_column(field: AnyField) -> tuple[str, Column]:
    """The heading of a field, and what is shown; times as ages."""
    if field.type is datetime:
        return f"#{field.title}", lambda job: output.ago(job.get(field.name))
    return f"#{field.title}" if field.is_number else field.title, lambda job: job.get(field.name)


def _fetch(client: ServiceClient, ids: Sequence[int]) -> PagedList:
    return PagedList(name="jobs", entries=list(waiting.fetch_jobs(client, ids)))


def _count(client: ServiceClient, names: Sequence[str], filters: Mapping[str, str]) -> PagedList:
    return PagedList(name="summary", entries=client.summary(by=names, filters=filters))


def _list_visible(
    client: ServiceClient, filters: Mapping[str, str], limit: int, *, after: int | None
) -> PagedList:
    """The first jobs, with their number; a refused site admin is referred to the numbers of jobs."""
    try:
        found = output.read_pages("jobs", partial(client.jobs, filters), limit=limit, after=after)
    except ApiError as error:
        if error.status != _FORBIDDEN or client.whoami()["role"] != "site_admin":
            raise
        raise CommandRefused(
            f"{error}; `pilotage job list --by vo,status` counts the jobs at your site"
        ) from None
    if found.next is None:
        return found
    conditions = {name: value for name, value in filters.items() if name != "sort"}
    counts = client.summary(by=["status"], filters=conditions)
    return replace(found, total=sum(row["count"] for row in counts))


#: Statuses of the columns of `top`.
_LIVING = [each for each in JobStatus if each not in FINAL]


def top(
    *,
    filters: options.JobFilters,
    by: Annotated[
        str, options.option("FIELD,…", "Fields by which jobs are counted.")
    ] = f"{JOB_GROUP.name},{SITE.name}",
    service: ServiceOptions,
) -> None:
    """Show numbers of the jobs that have not ended, by group and site, anew every two seconds until Ctrl-C.

    Without a terminal, and as JSON, they are printed once.

    Example: `pilotage job top --vo cms --by owner`.
    """
    names = [find_field("--by", each.strip()).name for each in by.split(",")]
    given = {"status": ",".join(_LIVING), **options.given_options(filters)}
    with service.connect() as client:
        if service.as_json:
            rows = client.summary(by=[*names, "status"], filters=given)
            service.emit({"summary": rows}, str)
        else:
            draw_repeatedly(lambda: _draw_top(names, client.summary(by=[*names, "status"], filters=given)))


def _draw_top(names: Sequence[str], rows: Sequence[Entry]) -> RenderableType:
    """A row for each combination of values of the fields, those with the most running jobs first."""
    numbers: defaultdict[tuple[object, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        numbers[tuple(row[name] for name in names)][row["status"]] += row["count"]
    total = sum(numbers.values(), Counter())
    statuses = [each.value for each in JobStatus if total[each.value]]
    order = sorted(
        numbers, key=lambda key: (-numbers[key][JobStatus.RUNNING], -numbers[key].total(), str(key))
    )
    headings = [_describe_column(find_field("--by", name))[0] for name in names]
    table = output.table(
        [*headings, *(f"#{status}" for status in statuses)],
        ((*key, *(numbers[key][status] or None for status in statuses)) for key in order),
    )
    counts = ", ".join(f"{total[status]:,} {status}" for status in statuses)
    head = f"{format_count(total.total(), 'job')}: {counts}" if counts else "no job that has not ended"
    return Group(head, table) if order else head


def draw_repeatedly(
    draw: Callable[[], RenderableType], *, pause: Callable[[float], object] = time.sleep
) -> None:
    """Draw again and again on a terminal until Ctrl-C, also while the service is away; elsewhere once."""
    console = output.console()
    if not console.is_terminal:
        output.emit(None, as_json=False, render=draw)
        return
    shown: RenderableType = ""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            note = ""
            try:
                shown = draw()
                output.fit_tables(shown, console.width)
            except (ServiceAway, ApiError) as error:
                if not shown or not is_passing(error):
                    raise
                note = f"not up to date: {error}"
            live.update(Group(shown, note) if note else shown, refresh=True)
            pause(_PAUSE)
