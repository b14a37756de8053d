"""`pilotage job submit`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage, harmless
from pilotage.client import submission
from pilotage.client.api import ApiError, ServiceAway, ServiceClient
from pilotage.client.submission import JobSource, PlannedJobs, Repetition
from requirements.errors import format_count, format_ids


def parse_parameters(words: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=V1,V2` words as names with their values."""
    parsed: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not (name and equals and values):
            raise WrongUsage(f"--param {word}: is not NAME=V1,V2,…")
        if name in parsed:
            raise WrongUsage(f"--param {word}: {name} is given twice")
        parsed[name] = values.split(",")
    return parsed


#: More ids than this are printed as ranges on a terminal.
_FEW = 20


def submit(
    files: Annotated[
        list[str], options.argument("FILE", "JDL, ClassAd, CFG, YAML or JSON; - is standard input.")
    ],
    *,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=1_000_000, help="Copies of each job.")
    ] = 1,
    param: Annotated[
        list[str] | None,
        options.option(
            "NAME=V1,V2…", "One job for each value, which replaces %(NAME)s; repeated: for each combination."
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            min=0, metavar="S", help="Seconds to wait for a service that is away, as in a failover."
        ),
    ] = submission.PATIENCE,
    idempotency_key: Annotated[
        str | None,
        options.option("KEY", "Key of a submission whose outcome is unknown: the same jobs are stored once."),
    ] = None,
    service: ServiceOptions,
) -> None:
    """Submit jobs with their input sandboxes, and print the job ids.

    Example: `pilotage job submit scan.jdl --param mass=120,125,130`.
    """
    parameters = parse_parameters(param or [])
    sources = list(map(_read, files))
    key = submission.make_key() if idempotency_key is None else idempotency_key
    repetition = Repetition(patience=patience, key=key, warn=output.warn)
    with service.connect() as client:
        requests = submission.plan_requests(
            client, sources, parameters=parameters, count=count, repetition=repetition
        )
        ids = _send_visibly(client, requests, repetition)
        forecast = "" if service.as_json or not sys.stdout.isatty() else _forecast_start(client, ids)
    if service.as_json or not sys.stdout.isatty() or len(ids) <= _FEW:
        service.emit({"job_ids": ids}, lambda: "\n".join(map(str, ids)))
    else:
        output.console().print(f"{format_count(len(ids), 'job')}: {format_ids(ids)}")
    if forecast:
        typer.echo(forecast, err=True)


def _forecast_start(client: ServiceClient, ids: Sequence[int]) -> str:
    """The forecast of the last job's start; empty: there is none, such as from an earlier release."""
    try:
        text = str(client.forecast_start(ids[-1])["text"]) if ids else ""
    except (ApiError, ServiceAway):  # the jobs are stored all the same
        return ""
    return harmless(text if len(ids) == 1 else f"The last of them: {text}")


def _read(file: str) -> JobSource:
    if file == "-":
        return JobSource(content=sys.stdin.read(), name="standard input", directory=Path())
    return JobSource.from_file(Path(file))


def _send_visibly(
    client: ServiceClient, requests: Sequence[PlannedJobs], repetition: Repetition
) -> list[int]:
    """Send all requests, with a progress bar on a terminal; the ids of all jobs."""
    ids: list[int] = []
    columns = (TextColumn("Submitting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = output.progress_console()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with progress as bar:
        task = bar.add_task("jobs", total=sum(request.jobs for request in requests))
        submission.collect_ids(
            submission.send_requests(client, requests, warn=output.warn, repetition=repetition),
            ids,
            progress=lambda number: bar.update(task, completed=number),
        )
    return ids
