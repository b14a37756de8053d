"""Tokens and sign-in links: pilots and gateways get and renew their tokens, operators revoke any."""

from datetime import datetime, timedelta
from secrets import token_hex
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from cs_config.options.operations import options_for
from pilotage.service.auth import access, audit, callers, login_links, login_tokens
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Grant, Role
from pilotage.service.http_errors import NotAuthenticated, NotHeard, TooManyLogins
from pilotage.service.models import StrictInput
from pilotage.service.routes.pilots import StampPath
from pilotage.service.routing import (
    SMALL,
    AnonymousRoute,
    ApiRoute,
    CallerOf,
    PartsOf,
    SecretOf,
    SecretRoute,
    TokenOf,
)
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.states import PilotStatus
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, SecretUsed
from taskqueue.leases import uptime
from taskqueue.pilots import pilot_secrets, pilots
from taskqueue.pilots.pilots import Pilot

#: UNKNOWN included: the batch system's failure to report does not mean that the pilot has ended.
_MAY_RUN = frozenset({PilotStatus.RUNNING, PilotStatus.UNKNOWN})

router = APIRouter(prefix="/tokens", tags=["tokens"], route_class=ApiRoute)

#: Lifetime of a renewed token.
_RENEWED = timedelta(days=1)
#: Seconds between two requests of a command line that waits for a login.
_POLL_SECONDS = 5
#: Longest lifetime of any token: a revoked id must be stored this long, as the token's expiry is unknown.
_LONGEST = timedelta(days=366)


class Revocation(StrictInput):
    """The token to revoke: exactly one of `token` and `jti`."""

    token: str | None = Field(default=None, max_length=8192, description="The token itself.")
    jti: str | None = Field(default=None, min_length=1, max_length=255, description="Id of the token.")


class WhoAmI(BaseModel):
    """The bearer of a token."""

    subject: str
    role: Role
    also: list[Role] = Field(description="Further roles; any of them suffices for a request.")
    user: str
    group: str
    vos: list[str] = Field(description="VOs of the token; of an operator the default VO of submissions.")
    sites: list[str]


@router.get("/me")
@allow(*Role)
def show_own(caller: CallerOf) -> WhoAmI:
    """Show whose token the request has, and its roles."""
    return WhoAmI(
        subject=caller.subject,
        role=caller.role,
        also=[each.role for each in caller.also],
        user=caller.user,
        group=caller.group,
        vos=sorted(caller.vos),
        sites=sorted(caller.sites),
    )


class MintedToken(BaseModel):
    """A token of its bearer; that of a broker's pilot has no queue until the pilot states one."""

    token: str
    expires_at: datetime


@router.post("/renew")
@allow(Role.PILOT, Role.GATEWAY, Role.DIRECTOR)
def renew(parts: PartsOf, token: TokenOf) -> MintedToken:
    """Renew the token of a gateway or director, or of a running pilot heard within `StalledTime`."""
    caller = token.caller
    if caller.role is Role.PILOT:
        _require_running(parts, caller)
    grant = Grant(caller=caller, ttl=_RENEWED)
    text, expires_at = parts.tokens.mint(grant, now=parts.clock(), token_id=token.token_id)
    return MintedToken(token=text, expires_at=expires_at)


def _require_running(parts: Services, caller: Caller) -> None:
    stamp, now = caller.stamp or "", parts.clock()
    leases = options_for(parts.live.current, caller.vo).leases
    with database.reading(parts.engine) as conn:
        pilot = pilots.get_pilot(conn, stamp)
        # One that died without a report stays Running: its token must not live on elsewhere. While the
        # service was away, nobody could be heard.
        since = uptime.read(conn).go_back(now, seconds=leases.stalled_time)
        is_heard = pilots.is_heard(conn, stamp, since=since)
    if pilot.status not in _MAY_RUN:
        raise NotAllowed(f"the pilot is {pilot.status}; only a running one renews its token")
    if not is_heard:
        raise NotHeard(f"the pilot was not heard for {leases.stalled_time:.0f} s, it does not run any more")


@router.post("/revoke", status_code=204, response_class=Response)
@allow(most_bytes=SMALL)
def revoke(parts: PartsOf, caller: CallerOf, body: Revocation) -> None:
    """Revoke a token, in all processes within seconds."""
    if (body.token is None) == (body.jti is None):
        raise InvalidRequest([Problem(path="body", message="needs exactly one of token and jti")])
    token_id = str(body.jti) if body.token is None else access.verify(body.token, parts).token_id
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        login_tokens.revoke_token(conn, token_id, expires_at=now + _LONGEST, now=now)
    parts.revoked.refresh()
    audit.done(caller, "revoke", token_id=token_id)


login_router = APIRouter(prefix="/login-links", tags=["tokens"], route_class=ApiRoute)


class LoginRequest(StrictInput):
    """The caller that the link is for; default: the sender itself."""

    role: str | None = Field(default=None, max_length=40, description="A person's role; operators only.")
    vo: str | None = Field(default=None, max_length=255)
    user: str | None = Field(default=None, max_length=255)
    group: str | None = Field(default=None, max_length=255)
    site: str | None = Field(default=None, max_length=255)


class LoginLink(BaseModel):
    """A one-time sign-in link."""

    path: str = Field(description="Path to append to the address of the service; the secret follows the #.")
    expires_at: datetime


@login_router.post("", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, most_bytes=SMALL)
def issue(parts: PartsOf, token: TokenOf, body: LoginRequest | None = None) -> LoginLink:
    """Create a link that signs one browser in within five minutes, with the rights of this request's token.

    Operators may name another person. The session ends after twelve hours, or when the token expires or is
    revoked.
    """
    wanted = token.caller
    if body is not None and body.role is not None:
        wanted = callers.grant(**body.model_dump()).caller
    secret, expires_at = login_links.issue(parts, token, wanted)
    return LoginLink(path=f"/login#{secret}", expires_at=expires_at)


device_router = APIRouter(prefix="/device-logins", tags=["tokens"], route_class=AnonymousRoute)
device_token_router = APIRouter(prefix="/device-logins", tags=["tokens"], route_class=SecretRoute)


class DeviceLogin(BaseModel):
    """A login of a command line, as in the device authorization grant of OAuth (RFC 8628)."""

    device_code: str = Field(description="Secret of the command line, the bearer of its next requests.")
    user_code: str = Field(description="Code that the person confirms in a browser.")
    path: str = Field(description="Path of the page for that, to append to the address of the service.")
    expires_at: datetime
    interval: int = Field(description="Seconds between two requests for the token.")


class DeviceToken(BaseModel):
    """The token of a command line; null until the person has confirmed its code."""

    token: str | None
    expires_at: datetime | None


@device_router.post("", status_code=201)
def begin_device(parts: PartsOf, request: Request) -> DeviceLogin:
    """Begin a login of a command line, without a token: a person who is signed in confirms its code."""
    now, address = parts.clock(), access.address(request)
    with database.reading(parts.engine) as conn:
        is_room = login_tokens.is_room_for_device(conn, address=address, now=now)
    if not is_room:
        raise TooManyLogins("too many command lines wait for a login, try again in a minute")
    with database.writing(parts.engine) as conn:
        secret, code, expires_at = login_tokens.begin_device(conn, address=address, now=now)
    return DeviceLogin(
        device_code=secret,
        user_code=code,
        path=f"/login/device?code={code}",
        expires_at=expires_at,
        interval=_POLL_SECONDS,
    )


@device_token_router.post("/token")
def fetch_device_token(parts: PartsOf, secret: SecretOf) -> DeviceToken:
    """Fetch the token of a command line, whose `device_code` is the bearer; once.

    It has the rights of the person's session, and ends with it.
    """
    found = login_links.fetch_device_token(parts, secret)
    token, expires_at = found or (None, None)
    return DeviceToken(token=token, expires_at=expires_at)


exchange_router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=SecretRoute)
_ACTION = "pilot secret"


class Exchange(StrictInput):
    """A pilot's exchange of its secret for a token."""

    request_id: UUID = Field(
        description="Chosen by the pilot's process: only a repetition with the same id gets the token again."
    )


@exchange_router.post("/{stamp}/token")
def exchange(
    parts: PartsOf, request: Request, secret: SecretOf, stamp: StampPath, body: Exchange
) -> MintedToken:
    """Exchange a pilot's secret for its token, once; 409 `secret_used`: another process did."""
    now = parts.clock()
    try:
        pilot = _redeemed(parts, stamp, secret, request_id=str(body.request_id), now=now)
    except (NotAuthenticated, SecretUsed, IllegalTransition) as error:
        audit.unproven(_ACTION, address=access.address(request), reason=str(error), stamp=stamp)
        raise
    # A pilot whose queue a broker picks states its queue in its next request.
    queue = f"{pilot.site}/{pilot.ce}/{pilot.queue}" if pilot.site else None
    granted = callers.grant(role=Role.PILOT, vo=pilot.vo, queue=queue, stamp=pilot.stamp)
    token_id = token_hex(16)
    token, expires_at = parts.tokens.mint(granted, now=now, token_id=token_id)
    audit.done(granted.caller, _ACTION, address=access.address(request), token_id=token_id)
    return MintedToken(token=token, expires_at=expires_at)


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
