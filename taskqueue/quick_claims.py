"""One job for each of many holders, claimed by one statement: what a claim is where nothing is counted.

On PostgreSQL a data-changing WITH takes the waiting rows, makes the jobs Matched, opens the attempts and
writes the log, so that a claim is one way to the server and back, its commit included. What must hold it
says itself: what `taking` says, that the site is not banned, and that the request was not answered before.
Where something is counted, or where it matters who each job is, `taking` and `choosing` go step by step.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taskqueue import claims
from taskqueue.claim_statement import CLAIM_MANY, CLAIM_ONE
from taskqueue.claims import Allotment, Claimed, Holder
from taskqueue.single_statements import Server
from taskqueue.taking import Want


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One job of one task queue, for one holder."""

    want: Want  #: of one job
    holder: Holder
    lease: str  #: that the job will be held by
    allotment: Allotment
    request_id: str | None = None  #: what the holder calls its request


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an ask brought."""

    claimed: Claimed | None = None  #: None: the task queue has no job for it that is free
    repeated: bool = False  #: the request was answered before, so it is given nothing new


def claim(server: Server, asks: Sequence[Ask], *, now: datetime) -> list[Outcome]:
    """Claim a job for each of them, as far as there is one: all in one statement.

    Args:
        server: PostgreSQL; the claim is made when the statement's transaction is committed.
        asks: Any number.
        now: The time.

    Raises:
        IntegrityError: One of the requests is being answered elsewhere; nothing was claimed.
    """
    rows = _one(server, asks[0], now) if len(asks) == 1 else _many(server, asks, now)
    outcomes = [Outcome()] * len(asks)
    for number, *row in rows:
        outcomes[number] = Outcome(repeated=True) if row[0] is None else _given(asks[number], row, now)
    return outcomes


def _one(server: Server, ask: Ask, now: datetime) -> Iterable[Sequence[Any]]:
    statement = CLAIM_ONE[ask.request_id is not None, ask.holder.stamp is not None, ask.want.has_pool]
    # As texts: the driver would give numbers of different size different types, and prepare anew for each.
    said = {name: None if value is None else str(value) for name, value in _said(0, ask, now).items()}
    return server.rows(statement.text, statement.values({**said, "now": now.isoformat()}))


def _many(server: Server, asks: Sequence[Ask], now: datetime) -> Iterable[Sequence[Any]]:
    said = {
        "asks": json.dumps([_said(number, ask, now) for number, ask in enumerate(asks)]),
        "now": now.isoformat(),
    }
    return server.rows(CLAIM_MANY.text, CLAIM_MANY.values(said))


def _said(number: int, ask: Ask, now: datetime) -> Mapping[str, object]:
    """An ask as the statement reads it."""
    want, eligible, place, holder = ask.want, ask.want.eligible, ask.want.place, ask.holder
    return {
        "number": number,
        "task_queue_id": want.task_queue_id,
        "eligible_site": eligible.site,
        "eligible_ce": eligible.ce,
        "eligible_queue": eligible.queue,
        "eligible_checked": eligible.checked,
        "site": place.site,
        "ce": place.ce,
        "queue": place.queue,
        "holder": holder.subject,
        "stamp": holder.stamp,
        "lease": ask.lease,
        "lease_expires_at": (now + holder.lease_time).isoformat(),
        "processors": ask.allotment.processors,
        "ram_mb": ask.allotment.ram_mb,
        "gpus": ask.allotment.gpus,
        "request_id": ask.request_id,
    }


def _given(ask: Ask, row: Sequence[Any], now: datetime) -> Outcome:
    job_id, epoch, vo, parameters, body, sandbox = row
    return Outcome(
        claimed=Claimed(
            job_id=job_id,
            epoch=epoch,
            vo=vo,
            lease=ask.lease,
            lease_expires_at=now + ask.holder.lease_time,
            description=claims.described(job_id, body, parameters),
            sandbox=sandbox,
            allotment=ask.allotment,
        )
    )
