"""Tokens: a running pilot renews its own, operators revoke any."""

from datetime import timedelta

from fastapi import APIRouter, Response

from pilotage.service import access, audit
from pilotage.service.access import allow
from pilotage.service.api_route import SMALL, ApiRoute, CallerOf, PartsOf, TokenOf, takes_at_most
from pilotage.service.callers import Caller, Role
from pilotage.service.grants import Grant
from pilotage.service.models.tokens import Renewed, Revocation
from pilotage.service.parts import Parts
from requirements.errors import InvalidRequest, NotAllowed
from requirements.problem import Problem
from taskqueue import database, pilots, revoked_tokens
from taskqueue.states import PilotStatus

#: A batch system that cannot say how a pilot is proves nothing.
_MAY_RUN = frozenset({PilotStatus.RUNNING, PilotStatus.UNKNOWN})

router = APIRouter(prefix="/tokens", tags=["tokens"], route_class=ApiRoute)

#: How long a renewed token is good.
_RENEWED = timedelta(days=1)
#: No token is good for longer: so long an id is remembered whose token we did not see.
_LONGEST = timedelta(days=366)


@router.post("/renew")
@allow(Role.PILOT, Role.GATEWAY)
def renew(parts: PartsOf, token: TokenOf) -> Renewed:
    """A fresh token for a gateway, or for a pilot that runs."""
    caller = token.caller
    if caller.role is Role.PILOT:
        _require_running(parts, caller)
    grant = Grant(caller=caller, ttl=_RENEWED)
    text, expires_at = parts.tokens.mint(grant, now=parts.clock(), token_id=token.token_id)
    return Renewed(token=text, expires_at=expires_at)


@router.post("/revoke", status_code=204, response_class=Response)
@allow()
@takes_at_most(SMALL)
def revoke(parts: PartsOf, caller: CallerOf, body: Revocation) -> None:
    """Accept a token no more, in all processes within seconds."""
    token_id = _token_id(parts, body)
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        revoked_tokens.revoke(conn, token_id, expires_at=now + _LONGEST, now=now)
    parts.revoked.refresh()
    audit.done(caller, "revoke", token_id=token_id)


def _require_running(parts: Parts, caller: Caller) -> None:
    with database.reading(parts.engine) as conn:
        pilot = pilots.get(conn, caller.stamp or "")
    if pilot.status not in _MAY_RUN:
        raise NotAllowed(f"the pilot is {pilot.status}; only a running one renews its token")


def _token_id(parts: Parts, body: Revocation) -> str:
    if (body.token is None) == (body.jti is None):
        raise InvalidRequest([Problem(path="body", message="needs exactly one of token and jti")])
    if body.token is not None:
        return access.verify(body.token, parts).token_id
    return str(body.jti)
