"""Who may use a route: roles are stated at each, and a route without them does not start."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from cs_config.operations import operations
from pilotage.service.callers import Caller, Role
from pilotage.service.limits import Rate
from pilotage.service.parts import Parts
from pilotage.service.refusals import NotAuthenticated
from pilotage.service.tokens import Token
from requirements.errors import NotAllowed

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "allowed_roles"

#: Every role that has to do with jobs and resources.
EVERY_ROLE = frozenset(Role) - {Role.MONITOR}


def allow(*roles: Role) -> Callable[[_Endpoint], _Endpoint]:
    """State the roles that may use the route; operators always may."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ATTRIBUTE, frozenset(roles) | {Role.OPERATOR})
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


def authenticate(request: Request, parts: Parts) -> Token:
    """What the token says of who asks.

    Raises:
        NotAuthenticated: There is no good token.
        TooManyRequests: Its bearer asked too often.
    """
    return admit_token(bearer(request), parts)


def admit_token(text: str, parts: Parts) -> Token:
    """What the token says of its bearer, whose request is counted.

    Raises:
        NotAuthenticated: It is not good.
        TooManyRequests: Its bearer asked too often.
    """
    token = parts.tokens.verify(text, now=parts.clock())
    if token.token_id in parts.revoked:
        raise NotAuthenticated("the token was revoked")
    caller = token.caller
    if not caller.is_operator:
        parts.rates.take(caller.subject, _rate(parts, vo=caller.vo), now=time.monotonic())
    return token


def admit_stranger(request: Request, parts: Parts) -> None:
    """Count a request of somebody of whom nothing is known but the address.

    Raises:
        TooManyRequests: There came too many from there.
    """
    rate = _rate(parts, vo=None)
    parts.rates.take(f"address:{address(request)}", rate, now=time.monotonic())


def require(request: Request, caller: Caller, roles: frozenset[Role]) -> None:
    """Let only these roles in.

    Raises:
        NotAllowed: The caller has none of them.
    """
    if caller.role not in roles:
        raise NotAllowed(f"the role {caller.role} may not {request.method} {request.url.path}")


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


def _rate(parts: Parts, *, vo: str | None) -> Rate:
    per_second = operations(parts.live.current, vo).limits.requests_per_second
    return Rate(per_second=per_second, burst=max(1, round(per_second * parts.limits.burst_seconds)))
