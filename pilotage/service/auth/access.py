"""Who may use a route: roles are stated at each, and a route without them does not start."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from cs_config.options.operations import options_for
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.auth.rate_limits import RequestRate
from pilotage.service.auth.tokens import BearerToken, UnknownKey
from pilotage.service.http_errors import NotAuthenticated, TokenRevoked
from pilotage.service.services import Services
from requirements.errors import NotAllowed

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "allowed_roles"
_CAPABILITY = "needed_capability"

#: Every role that has to do with jobs and resources.
EVERY_ROLE = frozenset(Role) - {Role.MONITOR}


def allow(*roles: Role, needs: Capability | None = None) -> Callable[[_Endpoint], _Endpoint]:
    """State the roles that may use the route; operators always may.

    Args:
        roles: Those that may.
        needs: What a token that is limited to some capabilities has to have among them; without it, such a
            token is good for the route only if that just reads.
    """

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ATTRIBUTE, frozenset(roles) | {Role.OPERATOR})
        setattr(endpoint, _CAPABILITY, needs)
        return endpoint

    return mark


def allowed_roles(endpoint: Callable[..., Any]) -> frozenset[Role]:
    """The roles stated at `endpoint`.

    Raises:
        TypeError: There are none: nobody decided who may use it.
    """
    roles = getattr(endpoint, _ATTRIBUTE, None)
    if not isinstance(roles, frozenset):
        raise TypeError(f"{endpoint.__name__} does not say who may use it: @allow is missing")
    return roles


def authenticate(request: Request, parts: Services) -> BearerToken:
    """What the token says of who asks.

    Raises:
        NotAuthenticated: There is no good token.
        TooManyRequests: Its bearer asked too often.
    """
    return _count_request(verify(bearer(request), parts), parts)


def admit_token(text: str, parts: Services) -> BearerToken:
    """What a token of our own says of its bearer, whose request is counted.

    Raises:
        NotAuthenticated: It is not good.
        TooManyRequests: Its bearer asked too often.
    """
    return _count_request(parts.tokens.verify(text, now=parts.clock()), parts)


def _count_request(token: BearerToken, parts: Services) -> BearerToken:
    if token.token_id in parts.revoked:
        raise TokenRevoked("the token was revoked")
    caller = token.caller
    if not caller.is_operator:
        parts.rates.take(caller.subject, _rate(parts, vo=caller.vo), now=time.monotonic())
    return token


def verify(text: str, parts: Services) -> BearerToken:
    """What a token says, be it ours or of an issuer that we trust; asks nobody.

    Raises:
        UnknownKey: It may be of an issuer that has a new key: have us learn it, and ask again.
        NotAuthenticated: It is not good.
    """
    now = parts.clock()
    try:
        return parts.tokens.verify(text, now=now)
    except UnknownKey:
        return parts.issuers.of(text).verify(text, now=now)


async def learn_key(request: Request, parts: Services) -> None:
    """Ask the issuer that a token names for its keys.

    Raises:
        NotAuthenticated: Nobody whom we trust signed it.
    """
    await parts.issuers.of(bearer(request)).learn()


def admit_stranger(request: Request, parts: Services) -> None:
    """Count a request of somebody of whom nothing is known but the address.

    Raises:
        TooManyRequests: There came too many from there.
    """
    rate = _rate(parts, vo=None)
    parts.rates.take(f"address:{address(request)}", rate, now=time.monotonic())


def require(request: Request, caller: Caller, roles: frozenset[Role]) -> Caller:
    """Let only these roles in: the caller in those of its roles.

    Raises:
        NotAllowed: The caller has none of them.
    """
    allowed = caller.within(roles)
    if allowed is None:
        own = ", ".join(one.role for one in caller.each)
        raise NotAllowed(f"the role {own} may not {request.method} {request.url.path}")
    return allowed


def require_capability(request: Request, caller: Caller, endpoint: Callable[..., Any]) -> None:
    """Keep a token that is limited to some capabilities to these.

    Raises:
        NotAllowed: What the route needs is not among them.
    """
    if caller.capabilities is None:
        return
    needed = getattr(endpoint, _CAPABILITY, None)
    if needed is None and request.method in ("GET", "HEAD"):
        needed = Capability.READ
    if needed not in caller.capabilities:
        raise NotAllowed(f"the scopes of the token do not have {needed or 'what this needs'}")


def address(request: Request) -> str:
    """The host that a request comes from."""
    return request.client.host if request.client else "unknown"


def bearer(request: Request) -> str:
    """The token, or the secret, that a request shows.

    Raises:
        NotAuthenticated: It shows none.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticated("this needs a token: Authorization: Bearer <token>")
    return token.strip()


def _rate(parts: Services, *, vo: str | None) -> RequestRate:
    per_second = options_for(parts.live.current, vo).limits.requests_per_second
    return RequestRate(per_second=per_second, burst=max(1, round(per_second * parts.limits.burst_seconds)))
