"""`pilotage job list`, `show`, `log` and `explain`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from pilotage.cli import explanation, job_ids, listing, options, output, submission
from pilotage.cli.connection import connect
from pilotage.cli.failures import WrongUsage
from pilotage.cli.listing import Listing
from pilotage.fabric.client import Client

Job = Mapping[str, Any]

#: Characters of a bar that shows how far a phase is.
_BAR = 24


def list_jobs(
    ids: options.JobIds = None,
    *,
    status: options.StatusFilter = None,
    vo: options.VoFilter = None,
    owner: options.OwnerFilter = None,
    site: options.SiteFilter = None,
    pool: options.PoolFilter = None,
    limit: listing.Limit = 50,
    after: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Only jobs older than this one.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIELD,…", help="Count instead, by status, site, vo, owner, minor_status …"),
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List jobs, the newest first, or count them by some of their fields."""
    wanted = job_ids.parse(ids)
    filters = job_ids.filters(status=status, vo=vo, owner=owner, site=site, pool=pool)
    with connect(home=home, url=url) as client:
        if by is not None:
            _summary(client, by, filters, as_json=as_json)
            return
        if wanted:
            found = Listing(name="jobs", entries=list(by_id(client, wanted)))
        else:
            found = first(client, filters, limit, after=after)
            if found.next is not None:
                found = replace(found, total=_count(client, filters))
    found.emit(_job_table, as_json=as_json)


def by_id(client: Client, ids: Sequence[int]) -> Iterator[Job]:
    """The jobs with these ids that there are."""
    for start in range(0, len(ids), listing.PAGE):
        named = ",".join(map(str, ids[start : start + listing.PAGE]))
        yield from client.jobs({"id": named}, limit=listing.PAGE)["jobs"]


def first(client: Client, filters: Mapping[str, str], limit: int, *, after: int | None = None) -> Listing:
    """The newest `limit` jobs that pass the filters and are older than `after`."""

    def page(most: int, last: object) -> Job:
        return client.jobs(filters, limit=most, after=last)

    return listing.read("jobs", page, limit=limit, after=after)


def _count(client: Client, filters: Mapping[str, str]) -> int:
    return sum(row["count"] for row in client.summary(by=["status"], filters=filters))


def show(
    job_id: options.JobId,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show all that is known about one job."""
    with connect(home=home, url=url) as client:
        found = client.job(job_id)
    output.emit(found, as_json=as_json, render=lambda: _details(found))


def log(
    job_id: options.JobId,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show every change of a job's status, in order."""
    with connect(home=home, url=url) as client:
        entries = client.job_log(job_id)
    output.emit({"job_id": job_id, "log": entries}, as_json=as_json, render=lambda: log_table(entries))


def explain(
    job: Annotated[str, typer.Argument(metavar="ID|FILE", help="A job, or a description to submit.")],
    *,
    forwarding: Annotated[
        bool,
        typer.Option(
            "--forwarding", help="Also what the queue, its batch system and the matcher decide of it."
        ),
    ] = False,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Say why a job does not run: every requirement that excludes queues, and what would help.

    Of a file with a description, whether it would run, before it is submitted.
    """
    with connect(home=home, url=url) as client:
        found = (
            client.explain(int(job), forwarding=forwarding)
            if job.isdecimal()
            else _explained_file(client, Path(job), forwarding=forwarding)
        )
    output.emit(found, as_json=as_json, render=lambda: explanation.of_job(found))


def _explained_file(client: Client, file: Path, *, forwarding: bool) -> Job:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{file}: neither the id of a job nor a file that can be read: {error}") from None
    first = submission.read(text, file=str(file), directory=file.parent)[0]
    if first.text is not None:
        return client.explain_description(jdl=first.text, forwarding=forwarding)
    return client.explain_description(job=submission.as_json(first.content), forwarding=forwarding)


def log_table(entries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The log of a job."""
    rows = (
        (output.local_time(e["at"]), e["from"], e["to"], e["minor"], e["source"], e["epoch"] or None)
        for e in entries
    )
    return output.table(("When", "From", "To", "Why", "Source", "#Epoch"), rows)


def _summary(client: Client, by: str, filters: Mapping[str, str], *, as_json: bool) -> None:
    fields = [field.strip() for field in by.split(",")]
    rows = client.summary(by=fields, filters=filters)
    headings = (*map(output.heading, fields), "#Jobs")
    cells = [(*(row[field] for field in fields), row["count"]) for row in rows]
    output.emit({"summary": rows}, as_json=as_json, render=lambda: output.table(headings, cells))


def _job_table(jobs: Sequence[Job]) -> RenderableType:
    rows = (
        (
            job["job_id"],
            job["status"],
            job["minor_status"],
            job["vo"],
            job["owner"],
            job["site"],
            (job["submit_pool"] or "")[:12],
            output.ago(job["submitted_at"]),
        )
        for job in jobs
    )
    return output.table(("#ID", "Status", "Minor status", "VO", "Owner", "Site", "Pool", "#Age"), rows)


def _details(job: Job) -> RenderableType:
    inner = {"attempt", "description", "job_id", "waited"}
    facts = {name: value for name, value in job.items() if name not in inner}
    attempt = _attempt(job["attempt"]) if job.get("attempt") else []
    waited = ((cause, f"{seconds:.0f} s") for cause, seconds in job.get("waited", {}).items())
    waiting = output.table(("Waited for", "#"), waited)
    description = output.table(("Description", ""), (job.get("description") or {}).items())
    return Group(output.facts(facts, title=f"Job {job['job_id']}"), *attempt, waiting, description)


def _attempt(attempt: Job) -> list[RenderableType]:
    """The latest attempt, and of a grid job how far it is."""
    facts = {name: value for name, value in attempt.items() if name != "phases"}
    phases = attempt.get("phases") or []
    if not phases:
        return [output.facts(facts, title="Latest attempt")]
    bars = output.table(("Phase", "", ""), ((each["name"], *_bar(each)) for each in phases))
    return [output.facts(facts, title="Latest attempt"), bars]


def _bar(phase: Job) -> tuple[str, str]:
    done, of = phase["done"], phase["of"]
    full = _BAR * done // of if of else 0
    return "█" * full + "░" * (_BAR - full), f"{done:,} of {of:,} {phase.get('unit', '')}".strip()
