"""Pilots: registration, status, lists, and the exchange of a pilot's secret for its token."""

from dataclasses import replace
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import Connection

from cs_config.tree.address import QueueAddress
from pilotage.service.auth import access, audit, visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Grant, Role, grant
from pilotage.service.http_errors import NotAuthenticated
from pilotage.service.models.pilots import (
    Exchange,
    NewPilot,
    PilotAnswer,
    PilotNews,
    PilotPage,
    PilotQuery,
    PilotSummary,
    PilotSummaryQuery,
    PilotSummaryRow,
    PilotToken,
    RegisteredPilot,
    StampsQuestion,
    StampStanding,
    Standings,
)
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, SecretOf, SecretRoute, takes_at_most
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, SecretUsed
from taskqueue.pilots import pilot_secrets, pilots, search
from taskqueue.pilots.pilots import Pilot
from taskqueue.states import PILOT_STEPS, PilotStatus

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)

StampPath = Annotated[str, Path(min_length=1, max_length=255)]


@router.post("", status_code=201)
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def register(parts: PartsOf, caller: CallerOf, body: NewPilot, response: Response) -> RegisteredPilot:
    """Register a pilot before it is submitted; repeating it answers 200 and renews only the secret."""
    queue, landings = _places(body)
    vo = visibility.vo_of(caller, body.vo)
    for each in landings if queue is None else (queue,):
        visibility.require_pilot_site(caller, vo, each)
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
        answer = RegisteredPilot.model_validate(pilots.get_pilot(conn, body.stamp))
        return answer.model_copy(update=_secret(conn, body, now) if body.secret else {})


@router.post("/standings")
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def standings(parts: PartsOf, body: StampsQuestion) -> Standings:
    """Show for stamps of batch jobs whether they belong to an active or ended pilot, of any VO.

    Stamps cannot be guessed, so that this reveals nothing else.
    """
    with database.reading(parts.engine) as conn:
        known = pilots.read_statuses(conn, body.stamps)
    return Standings(standings={stamp: _standing(known.get(stamp)) for stamp in body.stamps})


@router.get("/summary")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def summary(parts: PartsOf, caller: CallerOf, query: Annotated[PilotSummaryQuery, Query()]) -> PilotSummary:
    """Count pilots by some of their fields, with their outcomes."""
    by = [name.strip() for name in query.by.split(",") if name.strip()]
    which = visibility.visible_pilots(caller, vo=query.vo, site=query.site, status=query.status)
    with database.reading(parts.engine) as conn:
        counted = search.count_pilots(conn, by, which, ended_since=query.since)
    rows = [
        PilotSummaryRow.model_validate(fared).model_copy(update=dict(zip(by, values, strict=True)))
        for values, fared in counted.items()
    ]
    return PilotSummary(summary=rows)


@router.get("")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_pilots(parts: PartsOf, caller: CallerOf, query: Annotated[PilotQuery, Query()]) -> PilotPage:
    """List pilots of the caller's VOs, at the caller's sites."""
    which = visibility.visible_pilots(caller, vo=query.vo, site=query.site, status=query.status)
    which = replace(which, since=query.since)
    with database.reading(parts.engine) as conn:
        found = search.list_pilots(conn, which, limit=query.enough, after=query.after)
    page, last = query.cut(found)
    return PilotPage(
        pilots=[PilotAnswer.model_validate(pilot) for pilot in page], next=last.stamp if last else None
    )


@router.get("/{stamp}")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(parts: PartsOf, caller: CallerOf, stamp: StampPath) -> PilotAnswer:
    """Show one pilot."""
    with database.reading(parts.engine) as conn:
        pilot = pilots.get_pilot(conn, stamp)
    visibility.require_pilot(caller, pilot)
    return PilotAnswer.model_validate(pilot)


@router.post("/{stamp}/status")
@allow(Role.DIRECTOR, Role.PILOT)
@takes_at_most(SMALL)
def set_status(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotNews) -> PilotAnswer:
    """Store the status of a pilot, reported by its director or by itself."""
    with database.writing(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        pilots.set_status(
            conn,
            stamp,
            body.status,
            reason=body.reason,
            reference=body.reference,
            empty_reason=body.empty_reason,
            now=parts.clock(),
        )
        return PilotAnswer.model_validate(pilots.get_pilot(conn, stamp))


def _places(body: NewPilot) -> tuple[QueueAddress | None, tuple[QueueAddress, ...]]:
    """The queue that a pilot is sent to, or its possible queues."""
    if (body.queue is None) != bool(body.landings):
        raise InvalidRequest([Problem(path="body", message="needs queue, or landings, and not both")])
    queue = None if body.queue is None else QueueAddress.parse(body.queue)
    return queue, tuple(map(QueueAddress.parse, body.landings))


def _secret(conn: Connection, body: NewPilot, now: datetime) -> dict[str, object]:
    life = timedelta(seconds=body.secret_lifetime)
    secret, expires_at = pilot_secrets.issue_secret(conn, body.stamp, life=life, now=now)
    return {"secret": secret, "secret_expires_at": expires_at}


def _standing(status: PilotStatus | None) -> StampStanding:
    if status is None:
        return StampStanding.UNKNOWN
    return StampStanding.ACTIVE if PILOT_STEPS[status] else StampStanding.ENDED


exchange_router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=SecretRoute)


_ACTION = "pilot secret"


@exchange_router.post("/{stamp}/token")
def exchange(
    parts: PartsOf, request: Request, secret: SecretOf, stamp: StampPath, body: Exchange
) -> PilotToken:
    """Exchange a pilot's secret for its token, once; 409 `secret_used`: another process did."""
    now = parts.clock()
    try:
        pilot = _redeemed(parts, stamp, secret, request_id=str(body.request_id), now=now)
    except (NotAuthenticated, SecretUsed, IllegalTransition) as error:
        audit.unproven(_ACTION, address=access.address(request), reason=str(error), stamp=stamp)
        raise
    granted, token_id = _grant(pilot), token_hex(16)
    token, expires_at = parts.tokens.mint(granted, now=now, token_id=token_id)
    audit.done(granted.caller, _ACTION, address=access.address(request), token_id=token_id)
    return PilotToken(token=token, expires_at=expires_at)


def _redeemed(parts: Services, stamp: str, secret: str, *, request_id: str, now: datetime) -> Pilot:
    # Read first: wrong secrets must not take the write lock, since SQLite has one writer at a time.
    with database.reading(parts.engine) as conn:
        pilot = None
        is_known = pilot_secrets.is_secret_known(conn, stamp, secret)
    if is_known:
        with database.writing(parts.engine) as conn:
            pilot = pilot_secrets.redeem_secret(conn, stamp, secret, request_id=request_id, now=now)
    if pilot is None:
        raise NotAuthenticated("this is not the secret of a pilot that waits for its token")
    return pilot


def _grant(pilot: Pilot) -> Grant:
    # A pilot whose queue a broker picks states its queue in its next request.
    queue = f"{pilot.site}/{pilot.ce}/{pilot.queue}" if pilot.site else None
    return grant(role=Role.PILOT, vo=pilot.vo, queue=queue, stamp=pilot.stamp)
