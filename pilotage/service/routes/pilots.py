"""Pilots: intent, reference, state."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import Connection

from cs_config.address import QueueAddress
from pilotage.service import pilot_scope
from pilotage.service.access import allow
from pilotage.service.api_route import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.callers import Role
from pilotage.service.models.pilots import (
    NewPilot,
    PilotAnswer,
    PilotNews,
    PilotPage,
    PilotQuery,
    PilotSummary,
    PilotSummaryQuery,
    PilotSummaryRow,
    RegisteredPilot,
    StampsQuestion,
    Standing,
    Standings,
)
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from taskqueue import database, pilot_search, pilot_secrets, pilot_summary, pilots
from taskqueue.states import PILOT_STEPS, PilotStatus

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)

StampPath = Annotated[str, Path(min_length=1, max_length=255)]


@router.post("", status_code=201)
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def register(parts: PartsOf, caller: CallerOf, body: NewPilot, response: Response) -> RegisteredPilot:
    """Store the intent to submit a pilot; a second time it answers 200 and changes nothing but the secret."""
    queue, landings = _places(body)
    vo = pilot_scope.vo_of(caller, body.vo)
    for each in landings if queue is None else (queue,):
        pilot_scope.require_site(caller, vo, each)
        parts.live.current.require(each)
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        is_new = pilots.register(
            conn,
            stamp=body.stamp,
            vo=vo,
            queue=queue,
            landings=landings,
            submitted_by=caller.subject,
            now=now,
        )
        response.status_code = 201 if is_new else 200
        answer = RegisteredPilot.model_validate(pilots.get(conn, body.stamp))
        return answer.model_copy(update=_secret(conn, body, now) if body.secret else {})


@router.post("/standings")
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def standings(parts: PartsOf, body: StampsQuestion) -> Standings:
    """Say of batch jobs that were found by their stamps whether they are anybody's pilots.

    Of any VO: a stamp that cannot be guessed tells nothing but this.
    """
    with database.reading(parts.engine) as conn:
        known = pilots.statuses(conn, body.stamps)
    return Standings(standings={stamp: _standing(known.get(stamp)) for stamp in body.stamps})


@router.get("/summary")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def summary(parts: PartsOf, caller: CallerOf, query: Annotated[PilotSummaryQuery, Query()]) -> PilotSummary:
    """Count pilots by some of their fields, with how they fared."""
    by = [name.strip() for name in query.by.split(",") if name.strip()]
    which = pilot_scope.visible(caller, vo=query.vo, site=query.site, status=query.status)
    with database.reading(parts.engine) as conn:
        counted = pilot_summary.count(conn, by, which, ended_since=query.since)
    rows = [
        PilotSummaryRow.model_validate(fared).model_copy(update=dict(zip(by, values, strict=True)))
        for values, fared in counted.items()
    ]
    return PilotSummary(summary=rows)


@router.get("")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_pilots(parts: PartsOf, caller: CallerOf, query: Annotated[PilotQuery, Query()]) -> PilotPage:
    """List pilots: of the caller's VOs, at the caller's sites."""
    which = pilot_scope.visible(caller, vo=query.vo, site=query.site, status=query.status)
    which = replace(which, since=query.since)
    with database.reading(parts.engine) as conn:
        found = pilot_search.find(conn, which, limit=query.enough, after=query.after)
    page, last = query.cut(found)
    return PilotPage(
        pilots=[PilotAnswer.model_validate(pilot) for pilot in page], next=last.stamp if last else None
    )


@router.get("/{stamp}")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(parts: PartsOf, caller: CallerOf, stamp: StampPath) -> PilotAnswer:
    """One pilot."""
    with database.reading(parts.engine) as conn:
        pilot = pilots.get(conn, stamp)
    pilot_scope.require(caller, pilot)
    return PilotAnswer.model_validate(pilot)


@router.post("/{stamp}/status")
@allow(Role.DIRECTOR, Role.PILOT)
@takes_at_most(SMALL)
def set_status(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotNews) -> PilotAnswer:
    """Store what became of a pilot: its director's news, or its own."""
    with database.writing(parts.engine) as conn:
        pilot_scope.require(caller, pilots.get(conn, stamp))
        pilots.set_status(
            conn,
            stamp,
            body.status,
            reason=body.reason,
            reference=body.reference,
            empty_reason=body.empty_reason,
            now=parts.clock(),
        )
        return PilotAnswer.model_validate(pilots.get(conn, stamp))


def _places(body: NewPilot) -> tuple[QueueAddress | None, tuple[QueueAddress, ...]]:
    """The queue that a pilot goes to, or those that it may land in."""
    if (body.queue is None) != bool(body.landings):
        raise InvalidRequest([Problem(path="body", message="needs queue, or landings, and not both")])
    queue = None if body.queue is None else QueueAddress.parse(body.queue)
    return queue, tuple(map(QueueAddress.parse, body.landings))


def _secret(conn: Connection, body: NewPilot, now: datetime) -> dict[str, object]:
    life = timedelta(seconds=body.secret_lifetime)
    secret, expires_at = pilot_secrets.issue(conn, body.stamp, life=life, now=now)
    return {"secret": secret, "secret_expires_at": expires_at}


def _standing(status: PilotStatus | None) -> Standing:
    if status is None:
        return Standing.UNKNOWN
    return Standing.ACTIVE if PILOT_STEPS[status] else Standing.ENDED
