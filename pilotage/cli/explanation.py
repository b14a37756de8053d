"""Why a job does not run, as text for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from pilotage.cli import output

#: Characters of an expression, or of what would help, that a table shows.
_SHOWN = 400


def of_job(found: Mapping[str, Any]) -> RenderableType:
    """The answer of `GET /jobs/{id}/explain`."""
    eligible, candidates = found["eligible_queues"], found["candidate_queues"]
    status = output.cell(found["status"])
    job = "Not submitted" if found["job_id"] is None else f"Job {found['job_id']} is {status}"
    parts: list[RenderableType] = [f"{job}: {eligible} of {candidates} queues are eligible."]
    if found["reasons"]:
        parts.append(_reasons(found["reasons"]))
    if found.get("changes"):
        rows = ((_short(c["change"]), c["gains"], c["example"]) for c in found["changes"])
        parts.append(output.table(("What would help", "#Queues", "Such as"), rows))
    parts += [f"Left out: {output.escape(str(each))}" for each in found.get("left_out", ())]
    parts += [f"At this moment: {output.escape(_short(str(each)))}" for each in found.get("now", ())]
    if found.get("forwarding") is not None:
        parts.append(_forwarding(found["forwarding"]))
    return Group(*parts)


def _forwarding(told: list[Mapping[str, Any]]) -> RenderableType:
    """What is decided where, of the Requirements."""
    if not told:
        return "There is nothing that nodes could decide: no eligible queue, or no Requirements."
    rows = (
        (
            each["example"],
            each["queues"],
            "\n".join(each["at_queue"]),
            " ".join(each["flags"]),
            each["left"],
        )
        for each in told
    )
    headings = ("Such as", "#Queues", "Decided at the queue", "Said in flags", "Left to the matcher")
    return output.table(headings, rows)


def of_queue(found: Mapping[str, Any]) -> RenderableType:
    """The answer of `GET /resources/queues/{Site}/{CE}/{Queue}/explain`."""
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
                _short(r["has"]),
                _short(r["example"]["wanted"]),
                r["example"]["vo"],
            )
            for r in found["reasons"]
        )
        headings = ("Requirement", "#Jobs lost", "#Only by this", "It has", "Such as wanted", "By")
        parts.append(output.table(headings, lost))
    if found["changes"]:
        offers = ((_short(c["offer"]), c["gains"], c["vos"]) for c in found["changes"])
        parts.append(output.table(("What it could do", "#Jobs more", "Of"), offers))
    parts += [f"At this moment: {output.escape(_short(str(each)))}" for each in found.get("now", ())]
    return Group(*parts)


def _reasons(reasons: list[Mapping[str, Any]]) -> RenderableType:
    rows = (
        (r["requirement"], _short(r["wanted"]), r["excluded"], r["only_this"], *_example(r.get("example")))
        for r in reasons
    )
    headings = ("Requirement", "Wanted", "#Excludes", "#Only this", "Such as", "It has")
    return output.table(headings, rows)


def _example(example: Mapping[str, Any] | None) -> tuple[object, object]:
    return (example["queue"], _short(example["has"])) if example else (None, None)


def _short(text: str | None) -> str:
    """`text`; of one that would fill the screen its begin and its end. JSON has the whole."""
    if text is None or len(text) <= _SHOWN:
        return text or ""
    half = _SHOWN // 2
    return f"{text[:half]} … {text[-half:]} ({len(text)} characters)"
