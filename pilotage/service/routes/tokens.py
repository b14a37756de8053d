"""Tokens and sign-in links: pilots and gateways renew their tokens, operators revoke any."""

from datetime import timedelta

from fastapi import APIRouter, Response

from pilotage.service.auth import access, audit, callers, login_links
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Grant, Role
from pilotage.service.models.auth import LoginLink, LoginWish, Renewed, Revocation
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, TokenOf, takes_at_most
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem
from taskqueue import login_tokens
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.states import PilotStatus

#: UNKNOWN included: the batch system's failure to report does not mean that the pilot has ended.
_MAY_RUN = frozenset({PilotStatus.RUNNING, PilotStatus.UNKNOWN})

router = APIRouter(prefix="/tokens", tags=["tokens"], route_class=ApiRoute)

#: Lifetime of a renewed token.
_RENEWED = timedelta(days=1)
#: Longest lifetime of any token: a revoked id must be stored this long, as the token's expiry is unknown.
_LONGEST = timedelta(days=366)


@router.post("/renew")
@allow(Role.PILOT, Role.GATEWAY)
def renew(parts: PartsOf, token: TokenOf) -> Renewed:
    """Renew the token of a gateway, or of a pilot that runs."""
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
    """Revoke a token, in all processes within seconds."""
    token_id = _token_id(parts, body)
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        login_tokens.revoke_token(conn, token_id, expires_at=now + _LONGEST, now=now)
    parts.revoked.refresh()
    audit.done(caller, "revoke", token_id=token_id)


def _require_running(parts: Services, caller: Caller) -> None:
    with database.reading(parts.engine) as conn:
        pilot = pilots.get_pilot(conn, caller.stamp or "")
    if pilot.status not in _MAY_RUN:
        raise NotAllowed(f"the pilot is {pilot.status}; only a running one renews its token")


def _token_id(parts: Services, body: Revocation) -> str:
    if (body.token is None) == (body.jti is None):
        raise InvalidRequest([Problem(path="body", message="needs exactly one of token and jti")])
    if body.token is not None:
        return access.verify(body.token, parts).token_id
    return str(body.jti)


login_router = APIRouter(prefix="/login-links", tags=["tokens"], route_class=ApiRoute)


@login_router.post("", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
@takes_at_most(SMALL)
def issue(parts: PartsOf, token: TokenOf, body: LoginWish | None = None) -> LoginLink:
    """Create a link that signs one browser in within five minutes, with the rights of this request's token.

    Operators may name another person. The session ends after twelve hours, or when the token expires or is
    revoked.
    """
    wanted = token.caller if body is None or body.role is None else _requested_caller(body.role, body)
    secret, expires_at = login_links.issue(parts, token, wanted)
    return LoginLink(path=f"/login#{secret}", expires_at=expires_at)


def _requested_caller(role: str, wish: LoginWish) -> Caller:
    return callers.grant(role=role, vo=wish.vo, user=wish.user, group=wish.group, site=wish.site).caller
