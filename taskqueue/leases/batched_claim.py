"""Batched claim: one job for each of many holders in one statement (PostgreSQL).

The statement, `batched_claim.sql`, deletes the waiting rows, marks the jobs Matched, opens the attempts and
writes the log: one round trip, commit included. It checks its own conditions: those of `assignment`, that the
site is not banned, that the request was not answered before, and that its pilot has room (`slots`). It reads,
applies and counts running limits. For other limits, and where a location inspects each job, `assignment` and
`candidate_jobs` work step by step.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from requirements.resource import Allotment, Location
from taskqueue.leases import opening
from taskqueue.leases.opening import ClaimedJob, LeaseHolder
from taskqueue.pilots.slots import SlotRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaim:
    """One job of one task queue, for one holder."""

    task_queue_id: int
    place: Location  #: where it will run
    holder: LeaseHolder
    lease: str  #: token for the attempt
    allotment: Allotment
    request_id: str | None = None  #: chosen by the holder
    #: The VO whose jobs alone will do; None: those of several. Undecided where a site has floors of others.
    only_vo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaimResult:
    """The outcome of one claim."""

    claimed: ClaimedJob | None = None  #: None: the task queue has no free job for it, or as follows
    refused: SlotRefusal | None = None  #: why its pilot gets nothing here, whatever waits
    #: It was answered before, its place is closed or has no room for the job, or its pilot has room for a
    #: smaller job only: step by step it gets the earlier answer, a job, or the reason.
    is_undecided: bool = False
    #: If undecided: the attributes by whose limits on jobs the place has no room for the first job.
    full: tuple[str, ...] = ()


def build_statement(requests: Sequence[BatchClaim], *, now: datetime) -> tuple[str, tuple[str, ...]]:
    """The statement that claims a job for each request, and its values."""
    given = [_bind_claim(number, request, now) for number, request in enumerate(requests)]
    return _read_statement(), (json.dumps(given), now.isoformat())


@cache
def _read_statement() -> str:
    return Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


def read_results(
    requests: Sequence[BatchClaim], rows: Iterable[Sequence[Any]], *, now: datetime
) -> list[BatchClaimResult]:
    """The outcome of each request, from the rows of the statement."""
    outcomes = [BatchClaimResult()] * len(requests)
    for number, job_id, epoch, vo, parameters, body, sandbox, refusal, full in rows:
        if refusal is not None:
            outcomes[number] = _read_refusal(refusal, full or ())
            continue
        request = requests[number]
        outcomes[number] = BatchClaimResult(
            claimed=ClaimedJob(
                job_id=job_id,
                epoch=epoch,
                vo=vo,
                lease=request.lease,
                lease_expires_at=now + request.holder.lease_time,
                description_json=opening.describe_job(job_id, body, parameters),
                sandbox=sandbox,
                allotment=request.allotment,
            )
        )
    return outcomes


def _read_refusal(refusal: str, full: Iterable[str]) -> BatchClaimResult:
    if refusal == "undecided":
        return BatchClaimResult(is_undecided=True, full=tuple(full))
    return BatchClaimResult(refused=SlotRefusal(refusal))


def _bind_claim(number: int, request: BatchClaim, now: datetime) -> Mapping[str, object]:
    """A request as the statement reads it; columns that are left out are null."""
    place, holder = request.place, request.holder
    return {
        "number": number,
        "task_queue_id": request.task_queue_id,
        "site": place.site,
        "ce": place.ce,
        "queue": place.queue,
        "checked": place.checked,
        "holder": holder.subject,
        "stamp": holder.stamp,
        "slot": None if holder.slot is None else holder.slot.processors,
        "claims": None if holder.slot is None else holder.slot.claims,
        "lease": request.lease,
        "lease_expires_at": (now + holder.lease_time).isoformat(),
        **request.allotment.to_columns(),
        "request_id": request.request_id,
        "only_vo": request.only_vo,
        "times": holder.times.to_text() if holder.times else None,
    }
