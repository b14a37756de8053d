"""The first contact of a pilot: a one-use secret becomes its token."""

from datetime import datetime
from secrets import token_hex
from typing import Annotated

from fastapi import APIRouter, Path, Request

from pilotage.service import access, audit
from pilotage.service.api_route import PartsOf, SecretOf, SecretRoute
from pilotage.service.callers import Role
from pilotage.service.grants import Grant, grant
from pilotage.service.models.pilots import Exchange, PilotToken
from pilotage.service.parts import Parts
from pilotage.service.refusals import NotAuthenticated
from taskqueue import database, pilot_secrets
from taskqueue.errors import IllegalTransition, SecretUsed
from taskqueue.pilots import Pilot

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=SecretRoute)

StampPath = Annotated[str, Path(min_length=1, max_length=255)]

_ACTION = "pilot secret"


@router.post("/{stamp}/token")
def exchange(
    parts: PartsOf, request: Request, secret: SecretOf, stamp: StampPath, body: Exchange
) -> PilotToken:
    """Exchange a pilot's secret for its token, once; 409 `secret_used` says that another process did."""
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


def _redeemed(parts: Parts, stamp: str, secret: str, *, request_id: str, now: datetime) -> Pilot:
    # Who guesses only reads: on SQLite there is one writer at a time.
    with database.reading(parts.engine) as conn:
        pilot = None
        is_known = pilot_secrets.is_known(conn, stamp, secret)
    if is_known:
        with database.writing(parts.engine) as conn:
            pilot = pilot_secrets.redeem(conn, stamp, secret, request_id=request_id, now=now)
    if pilot is None:
        raise NotAuthenticated("this is no secret of a pilot that waits for its token")
    return pilot


def _grant(pilot: Pilot) -> Grant:
    # One whose queue a broker picks says at its next request where it has landed.
    queue = f"{pilot.site}/{pilot.ce}/{pilot.queue}" if pilot.site else None
    return grant(role=Role.PILOT, vo=pilot.vo, queue=queue, stamp=pilot.stamp)
