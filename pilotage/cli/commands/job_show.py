"""`pilotage job show`, `log`, `logs` and `explain`, and the tables of explanations."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage, harmless
from pilotage.cli.output import Column, Entry
from pilotage.client.api import ApiError, ServiceClient
from requirements.errors import format_count, shorten
from requirements.job_fields import JOB_GROUP
from requirements.states import FINAL, UNMATCHED, JobStatus

#: Characters of an expression or a proposed change in a table.
_SHOWN = 400


def explain_job(found: Mapping[str, Any]) -> RenderableType:
    """A table of the response of `GET /jobs/{id}/explain`."""
    eligible, candidates = found["eligible_queues"], found["candidate_queues"]
    status = output.cell(found["status"])
    name = f"Job {found['job_id']}"
    job = "Not submitted" if found["job_id"] is None else f"{name} is {status}"
    waits = found["status"] is None or found["status"] in UNMATCHED
    numbers = f"{job}: {_format_eligible(eligible, candidates)} eligible."
    # A service of an earlier release has no headline.
    parts: list[RenderableType] = [
        f"{job if waits else name}. {harmless(found['headline'])}" if "headline" in found else numbers
    ]
    if sites := found.get("sites"):
        parts.append(f"Sites with an eligible queue: {harmless(_shorten(', '.join(sites)))}")
    if required := [each for each in found["reasons"] if not each.get("closed")]:
        parts.append(output.list_table(_REASONS_OF_JOB, required))
    parts += [
        f"Closed to its VO: {harmless(each['closed'])}, such as {harmless(each['example']['queue'])}"
        for each in found["reasons"]
        if each.get("closed")
    ]
    if found.get("changes"):
        heading = "What would help" if waits else "What would have helped"
        parts.append(output.list_table({heading: _describe_change, **_CHANGES_OF_JOB}, found["changes"]))
    parts += [f"Left out: {harmless(str(each))}" for each in found.get("left_out", ())]
    parts += [f"At this moment: {harmless(_shorten(str(each)))}" for each in found.get("now", ())]
    if start := found.get("start"):
        parts.append(harmless(str(start["text"])))
    if found.get("forwarding") is not None:
        parts.append(_forwarding(found["forwarding"]))
    return Group(*parts)


def _format_eligible(eligible: int, candidates: int) -> str:
    verb = "is" if 1 in (eligible, candidates) else "are"
    return f"{eligible:,} of {format_count(candidates, 'queue')} {verb}"


def _forwarding(decisions: list[Mapping[str, Any]]) -> RenderableType:
    """The parts of the Requirements that the queue, its batch system and the matcher decide."""
    if not decisions:
        return "Nodes have nothing to decide: no eligible queue, or the job requires nothing of them."
    columns: dict[str, Column] = {
        "Such as": "example",
        "#Queues": "queues",
        "Decided at the queue": lambda each: "\n".join(each["at_queue"]),
        "Passed as flags": lambda each: " ".join(each["flags"]),
        "Left to the matcher": "left",
        "Job managers": lambda each: "may get it" if each["sufficient"] else "never: not all is passed",
    }
    return output.list_table(columns, decisions)


def explain_queue(found: Mapping[str, Any]) -> RenderableType:
    """A table of the response of `GET /resources/queues/{Site}/{CE}/{Queue}/explain`."""
    waiting, serves = found["waiting"], found["serves"]
    total, served = (sum(work["jobs"] for work in each.values()) for each in (waiting, serves))
    parts: list[RenderableType] = [
        f"{found['queue']} may run {served:,} of {format_count(total, 'waiting job')}."
    ]
    if waiting:
        rows = ((vo, serves.get(vo, {}).get("jobs", 0), work["jobs"]) for vo, work in waiting.items())
        parts.append(output.table(("VO", "#May run", "#Wait"), rows))
    if left := found.get("left_out"):
        classes, jobs = (sum(work[key] for work in left.values()) for key in ("classes", "jobs"))
        parts.append(f"Of {jobs} of them, with {classes} other sets of requirements, nothing was computed.")
    if found["reasons"]:
        parts.append(output.list_table(_REASONS_OF_QUEUE, found["reasons"]))
    if found["changes"]:
        parts.append(output.list_table(_CHANGES_OF_QUEUE, found["changes"]))
    parts += [f"At this moment: {harmless(_shorten(str(each)))}" for each in found.get("now", ())]
    return Group(*parts)


def _shorten(text: str | None) -> str:
    """`text` as a table has it; JSON has the whole."""
    return shorten(text or "", most=_SHOWN)


def _describe_change(change: Mapping[str, Any]) -> str:
    return _shorten(change["change"])


_REASONS_OF_JOB: Mapping[str, Column] = {
    "Requirement": "requirement",
    "Wanted": lambda reason: _shorten(reason["wanted"]),
    "#Excludes": "excluded",
    "#Only this": "only_this",
    "Such as": lambda reason: reason["example"]["queue"] if reason.get("example") else None,
    "It has": lambda reason: _shorten(reason["example"]["has"]) if reason.get("example") else None,
}
_CHANGES_OF_JOB: Mapping[str, Column] = {
    "#More queues": "gains",
    "#Open now": lambda change: change.get("open_now"),
    "Such as": "example",
}
_REASONS_OF_QUEUE: Mapping[str, Column] = {
    "Requirement": "requirement",
    "#Jobs lost": "jobs",
    "#Only by this": "only_this",
    "It has": lambda reason: _shorten(reason["has"]),
    "Such as wanted": lambda reason: _shorten(reason["example"]["wanted"]),
    "By": lambda reason: reason["example"]["vo"],
}
_CHANGES_OF_QUEUE: Mapping[str, Column] = {
    "What it could do": lambda change: _shorten(change["offer"]),
    "#Jobs more": "gains",
    "Of": "vos",
}

#: What an attempt asked for and used, by its name in answers.
_AMOUNTS = {"memory_mb": "Memory, MB", "scratch_mb": "Scratch, MB", "cpu_seconds": "CPU time, s"}
#: Characters of the progress bar of a phase.
_BAR = 24


def show(
    job_id: options.JobId,
    *,
    local_jobs: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="Rows of the local jobs of a grid job to show.")
    ] = 20,
    local_state: Annotated[
        str | None, options.option("STATE", "Only local jobs in this state, such as failed.")
    ] = None,
    service: ServiceOptions,
) -> None:
    """Show all details of one job, and the local jobs of a grid job.

    Example: `pilotage job show 42`.
    """

    def read(client: ServiceClient) -> Entry:
        found = client.job(job_id)
        if local_jobs and (found["attempt"] or {}).get("local_jobs"):
            page = client.local_jobs(job_id, limit=local_jobs, state=local_state)
            found |= {"local_jobs": page["local_jobs"], "more_local_jobs": page["next"] is not None}
        if found["status"] == JobStatus.WAITING:
            with suppress(ApiError):  # such as one of a service of an earlier release
                found["start"] = client.forecast_start(job_id)
        return found

    service.show(read, render_job)


def log(job_id: options.JobId, *, service: ServiceOptions) -> None:
    """Show every change of a job's status, in order.

    Example: `pilotage job log 42`.
    """
    service.show(
        lambda client: {"job_id": job_id, "log": client.job_log(job_id)},
        lambda found: output.list_table(_LOG, found["log"]),
    )


def forecast(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="JobGroup of the jobs.")],
    *,
    vo: options.VoFilter = None,
    owner: options.OwnerFilter = None,
    service: ServiceOptions,
) -> None:
    """Show when the last waiting job of a group probably starts, and when the group is probably done.

    Example: `pilotage job forecast scan`.
    """
    given = {JOB_GROUP.name: group}
    given |= {name: each for name, each in (("vo", vo), ("owner", owner)) if each}
    service.show(lambda client: client.forecast_end(given), lambda found: harmless(str(found["text"])))


#: Seconds between two looks at a running job.
_PAUSE = 2.0


def logs(
    job_id: options.JobId,
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Show new lines as they come, until the job has ended."),
    ] = False,
    service: ServiceOptions,
) -> None:
    """Show the last lines that a job wrote, as of its last heartbeat.

    What it wrote after that is in its files: `pilotage job output` downloads them when the job has ended.

    Example: `pilotage job logs 42 --follow`.
    """
    shown = ""
    with service.connect() as client:
        while True:
            job = client.job(job_id)
            tail = read_tail(job)
            if service.as_json:
                service.emit({"job_id": job_id, "status": job["status"], "output_tail": tail}, str)
            elif new := new_lines(shown, tail):
                typer.echo(harmless(new), nl=not new.endswith("\n"))
            shown = tail or shown
            if not follow or job["status"] in FINAL:
                break
            time.sleep(_PAUSE)
    has_ended = job["status"] in FINAL
    if not service.as_json and (has_ended or not shown):
        rest = "what it wrote after its last heartbeat is not shown here"
        lines = rest if shown else "no line of it was reported"
        files = f"; see `pilotage job output {job_id}`" if has_ended else ""
        typer.echo(f"job {job_id} is {job['status']}: {lines}{files}", err=True)


def read_tail(job: Entry) -> str:
    """The last lines that a job wrote, as of its last heartbeat."""
    return str((job["attempt"] or {}).get("output_tail", ""))


def new_lines(before: str, after: str) -> str:
    """The part of `after` that follows the longest end of `before` with which it begins.

    Where `before` ended within a line, without the end of that line: it was shown with one.
    """
    lines = before.splitlines(keepends=True)
    ends = ("".join(lines[first:]) for first in range(len(lines)))
    end = next((end for end in ends if after.startswith(end)), "")
    new = after.removeprefix(end)
    return new.removeprefix("\n") if end and not end.endswith("\n") else new


def explain(
    job: Annotated[str, options.argument("ID|FILE", "Job id, or a file with a job description.")],
    *,
    forwarding: Annotated[
        bool,
        typer.Option(
            "--forwarding", help="Also show which parts the queue, its batch system and the matcher decide."
        ),
    ] = False,
    service: ServiceOptions,
) -> None:
    """Explain why a job does not run: requirements that exclude queues, and changes that would help.

    With a file, check its first description before it is submitted.

    Example: `pilotage job explain 42`.
    """
    if job.isdecimal():
        service.show(lambda client: client.explain(int(job), forwarding=forwarding), explain_job)
    else:
        service.show(lambda client: _explain_file(client, Path(job), forwarding=forwarding), explain_job)


def list_queues(
    job_id: Annotated[int, options.argument("ID", "Job id.")],
    *,
    limit: output.Limit = 20,
    service: ServiceOptions,
) -> None:
    """List the eligible queues of a job with their rank, in the order in which a director fills them.

    Example: `pilotage job queues 42`.
    """
    columns: Mapping[str, Column] = {"Site/CE/Queue": "queue", "#Rank": "rank"}
    service.show(
        lambda client: client.queues_of_job(job_id, limit=limit),
        lambda found: output.list_table(
            columns,
            found["queues"],
            title=format_count(found["eligible"], "queue is eligible", "queues are eligible"),
        ),
    )


def _explain_file(client: ServiceClient, file: Path, *, forwarding: bool) -> Entry:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{file}: neither a job id nor a readable file: {error}") from None
    return client.explain_description(jdl=text, forwarding=forwarding)


_LOG: Mapping[str, Column] = {
    "When": lambda entry: output.local_time(entry["at"]),
    "From": "from",
    "To": "to",
    "Why": "minor",
    "Source": "source",
    "#Epoch": lambda entry: entry["epoch"] or None,
    "Details": "application",
}


_RETRIES: Mapping[str, Column] = {
    "#Attempt": "epoch",
    "Ended": lambda entry: output.local_time(entry["at"]),
    "Retried by a rule": "note",
}

_RELAXATIONS: Mapping[str, Column] = {
    "Given up": lambda entry: output.local_time(entry["at"]),
    "By a rule, for it waited long": "note",
}


def render_job(job: Entry) -> RenderableType:
    """A table of the response of `GET /jobs/{id}`."""
    inner = {
        "start",
        "after",
        "retries",
        "relaxations",
        "attempt",
        "description",
        "job_id",
        "parameters",
        "waited",
        "local_jobs",
        "more_local_jobs",
    }
    facts = {name: value for name, value in job.items() if name not in inner}
    if start := job.get("start"):
        facts["start"] = start["text"]
    attempt = _attempt(job["attempt"]) if job.get("attempt") else []
    waited = ((cause, f"{seconds:.0f} s") for cause, seconds in job.get("waited", {}).items())
    waiting = output.table(("Waited for", "#"), waited)
    parameters = output.table(("Parameter", ""), (job.get("parameters") or {}).items())
    shown = [parameters] if job.get("parameters") else []
    if parents := job.get("after"):  # not of a service of 1.0.0
        rows = ((each["job_id"], each["status"]) for each in parents)
        shown.insert(0, output.table(("#After job", "Status"), rows))
    if job.get("retries"):
        shown.insert(0, output.list_table(_RETRIES, job["retries"]))
    if job.get("relaxations"):
        shown.insert(0, output.list_table(_RELAXATIONS, job["relaxations"]))
    description = output.table(("Description", ""), (job.get("description") or {}).items())
    local = list(_local_jobs(job)) if job.get("local_jobs") else []
    about = output.facts(facts, title=f"Job {job['job_id']}")
    return Group(about, *attempt, *local, waiting, *shown, description)


def _local_jobs(job: Entry) -> Iterator[RenderableType]:
    yield output.list_table(output.LOCAL_JOBS, job["local_jobs"])
    if job["more_local_jobs"]:
        yield f"The first {format_count(len(job['local_jobs']), 'local job')}; --local-jobs N shows more."


def _attempt(attempt: Entry) -> list[RenderableType]:
    """The latest attempt, for a grid job with the progress of its phases."""
    facts = {name: value for name, value in attempt.items() if name not in {"phases", "asked", "used"}}
    shown: list[RenderableType] = [output.facts(facts, title="Latest attempt")]
    if "used" in attempt:  # not of a service of 1.0.0
        shown.append(output.table(("Resource", "#Asked", "#Used"), _list_amounts(attempt)))
    if phases := attempt.get("phases"):
        bars = ((each["name"], *_bar(each)) for each in phases)
        shown.append(output.table(("Phase", "", ""), bars))
    return shown


def _list_amounts(attempt: Entry) -> Iterator[tuple[str, str, str]]:
    for name, title in _AMOUNTS.items():
        asked, used = (_format_amount(attempt[which][name]) for which in ("asked", "used"))
        yield title, asked, used


def _format_amount(amount: float | None) -> str:
    return "" if amount is None else f"{amount:,.0f}"


def _bar(phase: Entry) -> tuple[str, str]:
    done, of = phase["done"], phase["of"]
    full = _BAR * done // of if of else 0
    return "█" * full + "░" * (_BAR - full), f"{done:,} of {of:,} {phase.get('unit', '')}".strip()
