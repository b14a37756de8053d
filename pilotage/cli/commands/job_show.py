"""`pilotage job list`, `show`, `log` and `explain`, and the tables of explanations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from pilotage.cli import job_ids, options, output
from pilotage.cli.connection import connect
from pilotage.cli.errors import WrongUsage
from pilotage.cli.output import PagedList
from pilotage.fabric.client import Client

#: Characters of an expression or a proposed change in a table.
_SHOWN = 400


def explain_job(found: Mapping[str, Any]) -> RenderableType:
    """A table of the response of `GET /jobs/{id}/explain`."""
    eligible, candidates = found["eligible_queues"], found["candidate_queues"]
    status = output.cell(found["status"])
    job = "Not submitted" if found["job_id"] is None else f"Job {found['job_id']} is {status}"
    parts: list[RenderableType] = [f"{job}: {eligible} of {candidates} queues are eligible."]
    if found["reasons"]:
        parts.append(_reasons(found["reasons"]))
    if found.get("changes"):
        rows = ((_shorten(c["change"]), c["gains"], c["example"]) for c in found["changes"])
        parts.append(output.table(("What would help", "#Queues", "Such as"), rows))
    parts += [f"Left out: {output.escape(str(each))}" for each in found.get("left_out", ())]
    parts += [f"At this moment: {output.escape(_shorten(str(each)))}" for each in found.get("now", ())]
    if found.get("forwarding") is not None:
        parts.append(_forwarding(found["forwarding"]))
    return Group(*parts)


def _forwarding(decisions: list[Mapping[str, Any]]) -> RenderableType:
    """The parts of the Requirements that the queue, its batch system and the matcher decide."""
    if not decisions:
        return "Nodes have nothing to decide: no eligible queue, or no Requirements."
    rows = (
        (
            each["example"],
            each["queues"],
            "\n".join(each["at_queue"]),
            " ".join(each["flags"]),
            each["left"],
        )
        for each in decisions
    )
    headings = ("Such as", "#Queues", "Decided at the queue", "Said in flags", "Left to the matcher")
    return output.table(headings, rows)


def explain_queue(found: Mapping[str, Any]) -> RenderableType:
    """A table of the response of `GET /resources/queues/{Site}/{CE}/{Queue}/explain`."""
    waiting, serves = found["waiting"], found["serves"]
    total, served = (sum(work["jobs"] for work in each.values()) for each in (waiting, serves))
    parts: list[RenderableType] = [f"{found['queue']} may run {served} of {total} waiting jobs."]
    if waiting:
        rows = ((vo, serves.get(vo, {}).get("jobs", 0), work["jobs"]) for vo, work in waiting.items())
        parts.append(output.table(("VO", "#May run", "#Wait"), rows))
    if found["reasons"]:
        lost = (
            (
                r["requirement"],
                r["jobs"],
                r["only_this"],
                _shorten(r["has"]),
                _shorten(r["example"]["wanted"]),
                r["example"]["vo"],
            )
            for r in found["reasons"]
        )
        headings = ("Requirement", "#Jobs lost", "#Only by this", "It has", "Such as wanted", "By")
        parts.append(output.table(headings, lost))
    if found["changes"]:
        offers = ((_shorten(c["offer"]), c["gains"], c["vos"]) for c in found["changes"])
        parts.append(output.table(("What it could do", "#Jobs more", "Of"), offers))
    parts += [f"At this moment: {output.escape(_shorten(str(each)))}" for each in found.get("now", ())]
    return Group(*parts)


def _reasons(reasons: list[Mapping[str, Any]]) -> RenderableType:
    rows = (
        (r["requirement"], _shorten(r["wanted"]), r["excluded"], r["only_this"], *_example(r.get("example")))
        for r in reasons
    )
    headings = ("Requirement", "Wanted", "#Excludes", "#Only this", "Such as", "It has")
    return output.table(headings, rows)


def _example(example: Mapping[str, Any] | None) -> tuple[object, object]:
    return (example["queue"], _shorten(example["has"])) if example else (None, None)


def _shorten(text: str | None) -> str:
    """`text`, or its begin and end if it is too long for a table. JSON has the whole."""
    if text is None or len(text) <= _SHOWN:
        return text or ""
    half = _SHOWN // 2
    return f"{text[:half]} … {text[-half:]} ({len(text)} characters)"


Job = Mapping[str, Any]

#: Characters of the progress bar of a phase.
_BAR = 24


def list_jobs(
    ids: options.JobIds = None,
    *,
    status: options.StatusFilter = None,
    vo: options.VoFilter = None,
    owner: options.OwnerFilter = None,
    site: options.SiteFilter = None,
    pool: options.PoolFilter = None,
    limit: output.Limit = 50,
    after: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Only jobs older than this one (next page).")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIELD,…", help="Count jobs by status, site, vo, owner, minor_status …"),
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List jobs, newest first, or count them by some of their fields."""
    wanted = job_ids.parse_ids(ids)
    filters = job_ids.read_filters(status=status, vo=vo, owner=owner, site=site, pool=pool)
    with connect(home=home, url=url) as client:
        if by is not None:
            _summary(client, by, filters, as_json=as_json)
            return
        if wanted:
            found = PagedList(name="jobs", entries=list(fetch_jobs(client, wanted)))
        else:
            found = list_newest(client, filters, limit, after=after)
            if found.next is not None:
                found = replace(found, total=_count(client, filters))
    found.emit(_job_table, as_json=as_json)


def fetch_jobs(client: Client, ids: Sequence[int]) -> Iterator[Job]:
    """The existing jobs with these ids."""
    for start in range(0, len(ids), output.PAGE):
        named = ",".join(map(str, ids[start : start + output.PAGE]))
        yield from client.jobs({"id": named}, limit=output.PAGE)["jobs"]


def list_newest(
    client: Client, filters: Mapping[str, str], limit: int, *, after: int | None = None
) -> PagedList:
    """The newest `limit` jobs that pass the filters and are older than `after`."""

    def page(most: int, last: object) -> Job:
        return client.jobs(filters, limit=most, after=last)

    return output.read_pages("jobs", page, limit=limit, after=after)


def _count(client: Client, filters: Mapping[str, str]) -> int:
    return sum(row["count"] for row in client.summary(by=["status"], filters=filters))


def show(
    job_id: options.JobId,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show all details of one job."""
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
    job: Annotated[str, typer.Argument(metavar="ID|FILE", help="Job id, or a file with a job description.")],
    *,
    forwarding: Annotated[
        bool,
        typer.Option(
            "--forwarding", help="Also show which parts the queue, its batch system and the matcher decide."
        ),
    ] = False,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Explain why a job does not run: requirements that exclude queues, and changes that would help.

    With a file, check its first description before it is submitted.
    """
    with connect(home=home, url=url) as client:
        found = (
            client.explain(int(job), forwarding=forwarding)
            if job.isdecimal()
            else _explained_file(client, Path(job), forwarding=forwarding)
        )
    output.emit(found, as_json=as_json, render=lambda: explain_job(found))


def _explained_file(client: Client, file: Path, *, forwarding: bool) -> Job:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{file}: neither a job id nor a readable file: {error}") from None
    from pilotage.cli.commands import job_drafts

    first = job_drafts.read_drafts(text, file=str(file), directory=file.parent)[0]
    if first.text is not None:
        return client.explain_description(jdl=first.text, forwarding=forwarding)
    return client.explain_description(
        job=job_drafts.description_as_json(first.content), forwarding=forwarding
    )


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
    """The latest attempt, for a grid job with the progress of its phases."""
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
