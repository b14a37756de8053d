"""Why a job does not run, as text for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from pilotage.cli import output


def of_job(found: Mapping[str, Any]) -> RenderableType:
    """The answer of `GET /jobs/{id}/explain`."""
    eligible, candidates = found["eligible_queues"], found["candidate_queues"]
    status = output.cell(found["status"])
    job = "Not submitted" if found["job_id"] is None else f"Job {found['job_id']} is {status}"
    parts: list[RenderableType] = [f"{job}: {eligible} of {candidates} queues are eligible."]
    if found["reasons"]:
        parts.append(_reasons(found["reasons"]))
    if found.get("changes"):
        rows = ((c["change"], c["gains"], c["example"]) for c in found["changes"])
        parts.append(output.table(("What would help", "#Queues", "Such as"), rows))
    parts += [f"At this moment: {output.escape(str(each))}" for each in found.get("now", ())]
    return Group(*parts)


def _reasons(reasons: list[Mapping[str, Any]]) -> RenderableType:
    rows = (
        (r["requirement"], r["wanted"], r["excluded"], r["only_this"], *_example(r.get("example")))
        for r in reasons
    )
    headings = ("Requirement", "Wanted", "#Excludes", "#Only this", "Such as", "It has")
    return output.table(headings, rows)


def _example(example: Mapping[str, Any] | None) -> tuple[object, object]:
    return (example["queue"], example["has"]) if example else (None, None)
