"""Batched claim: one job for each of many holders in one statement.

On PostgreSQL a data-changing WITH deletes the waiting rows, marks the jobs Matched, opens the attempts and
writes the log: one round trip, commit included. The statement checks its own conditions: those of
`assignment`, that the site is not banned, and that the request was not answered before. It counts running
limits that the task queue decides (`CountingRules`), or they were counted before. For other limits, and where
a location inspects each job, `assignment` and `candidate_jobs` work step by step.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from requirements.resource import Allotment, Location
from requirements.values import fold
from taskqueue.db.compiled_sql import StatementRunner
from taskqueue.leases import claim_sql, opening
from taskqueue.leases.opening import ClaimedJob, LeaseHolder
from taskqueue.sites import scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingRules:
    """The running limits that count a job, for the statement to apply and count."""

    #: Id of each rule, and its limit; None: the job's VO is exempt.
    rules: Sequence[tuple[int, int | None]]
    digests: Mapping[str, str]  #: of the rules of each scope of the place that has any, by folded name
    counted_by: str  #: the rules as `BatchClaim.counted_by`


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaim:
    """One job of one task queue, for one holder."""

    task_queue_id: int
    place: Location  #: where it will run
    holder: LeaseHolder
    lease: str  #: token for the attempt
    allotment: Allotment
    request_id: str | None = None  #: chosen by the holder
    #: See `scope_rules.format_countings`; None: nothing counts at its place, which the statement checks.
    counted_by: str | None = None
    counting: CountingRules | None = None  #: None: what counts there was counted before
    has_pool: bool = True  #: the task queue's jobs have a SubmitPool; without one every location is eligible


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaimResult:
    """The outcome of one claim."""

    claimed: ClaimedJob | None = None  #: None: the task queue has no free job for it, or it was refused
    #: Why it gets nothing here, whatever waits: its pilot has no room (`SlotRefusal`). Empty: the request was
    #: answered before, or its place is closed; step by step it gets the earlier answer, or the reason.
    refused: str | None = None


def claim_jobs(
    server: StatementRunner, requests: Sequence[BatchClaim], *, now: datetime
) -> list[BatchClaimResult]:
    """Claim a job for each request if there is one, all in one statement (PostgreSQL).

    IntegrityError: one of the requests is being answered elsewhere; nothing was claimed.
    """
    return read_results(requests, server.rows(*build_statement(requests, now=now)), now=now)


def build_statement(requests: Sequence[BatchClaim], *, now: datetime) -> tuple[str, tuple[Any, ...]]:
    """The statement that claims a job for each request, and its values."""
    if any(each.counting is not None for each in requests):
        return _claim_limited(requests, now)
    return _claim_one(requests[0], now) if len(requests) == 1 else _claim_many(requests, now)


def read_results(
    requests: Sequence[BatchClaim], rows: Iterable[Sequence[Any]], *, now: datetime
) -> list[BatchClaimResult]:
    """The outcome of each request, from the rows of the statement."""
    outcomes = [BatchClaimResult()] * len(requests)
    for number, job_id, epoch, vo_or_refusal, parameters, body, sandbox in rows:
        if job_id is None:
            outcomes[number] = BatchClaimResult(refused=vo_or_refusal)
            continue
        request = requests[number]
        outcomes[number] = BatchClaimResult(
            claimed=ClaimedJob(
                job_id=job_id,
                epoch=epoch,
                vo=vo_or_refusal,
                lease=request.lease,
                lease_expires_at=now + request.holder.lease_time,
                description_json=opening.describe_job(job_id, body, parameters),
                sandbox=sandbox,
                allotment=request.allotment,
            )
        )
    return outcomes


def _claim_one(request: BatchClaim, now: datetime) -> tuple[str, tuple[Any, ...]]:
    statement = claim_sql.compile_one(keyed=request.request_id is not None, pooled=request.has_pool)
    # As text: the driver would give numbers of different size different types, and prepare a statement each.
    values = {
        name: None if value is None else str(value) for name, value in _bind_claim(0, request, now).items()
    }
    return statement.text, statement.values({**values, "now": now.isoformat()})


def _claim_many(requests: Sequence[BatchClaim], now: datetime) -> tuple[str, tuple[Any, ...]]:
    values = {
        "requests": json.dumps(
            [_bind_claim(number, request, now) for number, request in enumerate(requests)]
        ),
        "now": now.isoformat(),
    }
    statement = claim_sql.compile_many()
    return statement.text, statement.values(values)


def _claim_limited(requests: Sequence[BatchClaim], now: datetime) -> tuple[str, tuple[Any, ...]]:
    digests = _merge_digests(requests)
    values = {
        "requests": json.dumps(
            [_bind_limited_claim(number, request, now) for number, request in enumerate(requests)]
        ),
        "known": json.dumps([{"scope": scope, "digest": digest} for scope, digest in digests.items()]),
        "now": now.isoformat(),
    }
    statement = claim_sql.compile_limited()
    return statement.text, statement.values(values)


def _merge_digests(requests: Sequence[BatchClaim]) -> dict[str, str]:
    """The digest of the rules of each scope that has any; empty if requests read different rules there."""
    merged: dict[str, str | None] = {}
    for each in requests:
        digests = each.counting.digests if each.counting else {}
        for scope in _list_scopes(each.place):
            digest = digests.get(scope)
            merged[scope] = digest if merged.setdefault(scope, digest) == digest else ""
    return {scope: digest for scope, digest in merged.items() if digest is not None}


@lru_cache(maxsize=10_000)
def _list_scopes(place: Location) -> tuple[str, ...]:
    return scopes.GRID, *scopes.list_enclosing(fold(f"{place.site}/{place.ce}/{place.queue}"))


def _bind_claim(number: int, request: BatchClaim, now: datetime) -> Mapping[str, object]:
    """A request as the statement reads it."""
    place, holder = request.place, request.holder
    eligible = place if request.has_pool else Location(site="")
    return {
        "number": number,
        "task_queue_id": request.task_queue_id,
        "eligible_site": eligible.site,
        "eligible_ce": eligible.ce,
        "eligible_queue": eligible.queue,
        "eligible_checked": eligible.checked,
        "site": place.site,
        "ce": place.ce,
        "queue": place.queue,
        "holder": holder.subject,
        "stamp": holder.stamp,
        "slot": None if holder.slot is None else holder.slot.processors,
        "claims": None if holder.slot is None else holder.slot.claims,
        "lease": request.lease,
        "lease_expires_at": (now + holder.lease_time).isoformat(),
        **request.allotment.to_columns(),
        "request_id": request.request_id,
        "counted_by": request.counted_by,
        "times": holder.times.to_text() if holder.times else None,
    }


def _bind_limited_claim(number: int, request: BatchClaim, now: datetime) -> Mapping[str, object]:
    rules = {"rules": request.counting.rules} if request.counting else {}
    return {**_bind_claim(number, request, now), **rules}
