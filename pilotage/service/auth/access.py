"""Authorization of routes: each states its roles, and a route without them does not start."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Scope

from cs_config.cache import derived
from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.auth.rate_limits import RequestRate
from pilotage.service.auth.tokens import BearerToken, UnknownKey
from pilotage.service.http_errors import NotAuthenticated, TokenRevoked, TooManyRequests
from pilotage.service.services import Services
from requirements.errors import NotAllowed

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "access_rules"
#: In the state of a request: for whom its answer counts.
_PEER = "peer"

#: All roles that deal with jobs and resources.
EVERY_ROLE = frozenset(Role) - {Role.MONITOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may use a route, and how long its body may be."""

    roles: frozenset[Role]
    needs: Capability | None  #: of a token that is limited to capabilities
    most_bytes: int | None  #: of the body; None: as configured
    is_expensive: bool  #: may take much processor time: few are at work at a time
    keeps_numbers: bool  #: real numbers of the body keep their text (`WrittenReal`), for descriptions of jobs


def allow(
    *roles: Role,
    needs: Capability | None = None,
    most_bytes: int | None = None,
    is_expensive: bool = False,
    keeps_numbers: bool = False,
) -> Callable[[_Endpoint], _Endpoint]:
    """State the roles that may use the route; operators always may. `most_bytes` limits its body.

    A token that is limited to capabilities `needs` this one; without it, such a token may use the route only
    if that just reads. Of expensive requests few are at work at a time, so that others do not wait for them.
    `keeps_numbers`: real numbers of the body keep their text, since descriptions of jobs have some as texts.
    """

    def mark(endpoint: _Endpoint) -> _Endpoint:
        rules = AccessRules(
            roles=frozenset(roles) | {Role.OPERATOR},
            needs=needs,
            most_bytes=most_bytes,
            is_expensive=is_expensive,
            keeps_numbers=keeps_numbers,
        )
        setattr(endpoint, _ATTRIBUTE, rules)
        return endpoint

    return mark


def rules_of(endpoint: Callable[..., Any]) -> AccessRules:
    """The rules stated at `endpoint`; `TypeError` if there are none."""
    rules = getattr(endpoint, _ATTRIBUTE, None)
    if not isinstance(rules, AccessRules):
        raise TypeError(f"{endpoint.__name__} states no allowed roles: @allow is missing")
    return rules


def allowed_roles(endpoint: Callable[..., Any]) -> frozenset[Role]:
    """The roles stated at `endpoint`; `TypeError` if there are none."""
    return rules_of(endpoint).roles


def admit(token: BearerToken, parts: Services) -> BearerToken:
    """Count a request with a verified token; `TokenRevoked`, or `TooManyRequests` beyond its rate."""
    if token.token_id in parts.revoked:
        raise TokenRevoked("the token was revoked")
    caller = token.caller
    if not caller.is_operator:
        count(parts, caller.subject, vo=caller.vo)
    return token


def count(parts: Services, subject: str, *, vo: str | None = None) -> None:
    """Count a request of a subject; `TooManyRequests` beyond its rate."""
    rate = _find_rate(parts.live.current, vo, parts.limits.burst_seconds, math.inf)
    parts.rates.take(subject, rate, now=time.monotonic())


def find_holder(scope: Scope) -> tuple[str, str]:
    """The VO and the subject for whom the bytes of an answer count; of strangers no VO and the address."""
    state = scope.get("state", {})
    if (token := state.get("token")) is not None:
        return token.caller.tenant, token.caller.subject
    return state.get(_PEER) or ("", name_anonymous(Request(scope)))


def note_peer(request: Request, vo: str, subject: str) -> None:
    """Note for whom the answer counts, of a caller without a token of ours."""
    setattr(request.state, _PEER, (vo, subject))


def require_room(scope: Scope, parts: Services, *, is_alone: bool = False) -> None:
    """Raise `TooManyRequests` if answers that the caller, its VO, or all have not read are too many.

    Who holds jobs is judged by its own alone: their answers are short, and refused heartbeats, because others
    do not read theirs, would end the jobs. So is a caller with `is_alone`.
    """
    token = scope.get("state", {}).get("token")
    if token is not None and token.caller.is_operator:
        return
    holds_jobs = token is not None and token.caller.role in (Role.PILOT, Role.GATEWAY)
    parts.answers.require_room(*find_holder(scope), is_alone=is_alone or holds_jobs)


def admit_jobs(parts: Services, caller: Caller, what: str = "jobs") -> None:
    """Refuse a request of a caller that submitted or rescheduled too many jobs lately; `TooManyRequests`.

    Each is rows in the database until retention removes them, also one that is killed at once. The same holds
    for the pilots that a director registers.
    """
    if not caller.is_operator:
        rate = _find_job_rate(parts.live.current, caller.vo)
        parts.rates.take(_name_jobs(caller), rate, now=time.monotonic(), cost=0, what=what)


def count_jobs(parts: Services, caller: Caller, number: int) -> None:
    """Count jobs that an admitted request submitted or rescheduled, or pilots that it registered."""
    parts.rates.add(_name_jobs(caller), number)


def count_sign_in(parts: Services, caller: Caller) -> None:
    """Count a new session, or token of a command line, of a person; `TooManyRequests` beyond the rate."""
    if not caller.is_operator:
        rate = RequestRate(per_second=1 / bounds.SIGN_IN_SECONDS, burst=bounds.SIGN_INS)
        parts.rates.take(f"sign-ins of {caller.subject}", rate, now=time.monotonic(), what="sign-ins")


def _name_jobs(caller: Caller) -> str:
    return f"jobs of {caller.subject}"


def verify(text: str, parts: Services) -> BearerToken:
    """Verify a token of ours or of a trusted issuer, without network access.

    `UnknownKey`: the issuer may have a new key, call `learn_key` and verify again.
    """
    now = parts.clock()
    try:
        return parts.tokens.verify(text, now=now)
    except UnknownKey:
        return parts.issuers.find(text).verify(text, now=now)


async def learn_key(request: Request, parts: Services) -> None:
    """Fetch the keys of the issuer that a token names; `NotAuthenticated` if it is not a trusted one."""
    await parts.issuers.find(bearer(request)).learn()


def limit_anonymous(request: Request, parts: Services) -> None:
    """Count a request without a valid token by its address; `TooManyRequests` beyond the rate."""
    parts.rates.take(name_anonymous(request), _rate_stranger(parts), now=time.monotonic())


def admit_secret(request: Request, parts: Services, stamp: str) -> None:
    """Count the use of a secret; `TooManyRequests` beyond the rate, or after too many wrong secrets.

    Wrong ones, which `count_wrong_secret` counts, exclude this stamp only: many pilots may begin at one
    address, behind one translation of addresses.
    """
    now, everyone = time.monotonic(), name_anonymous(request)
    parts.rates.take(f"secret of {stamp} from {everyone}", _rate_stranger(parts), now=now, cost=0)
    count(parts, f"secrets of {everyone}")


def count_wrong_secret(request: Request, parts: Services, stamp: str) -> None:
    """Count a wrong secret of a stamp."""
    subject = f"secret of {stamp} from {name_anonymous(request)}"
    with suppress(TooManyRequests):
        parts.rates.take(subject, _rate_stranger(parts), now=time.monotonic())


def name_anonymous(request: Request) -> str:
    """The subject of a caller without a token: its address, or the network of it that one host may have."""
    host = address(request)
    if ":" in host:
        with suppress(ValueError):
            found = IPv6Address(host)
            host = str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))
    return f"address:{host}"


def _list_roles(roles: frozenset[Role]) -> str:
    *names, last = sorted(f"{_in_words(role)}s" for role in roles | {Role.OPERATOR})
    return f"{', '.join(names)} and {last}" if names else last


def _in_words(role: Role) -> str:
    return role.value.replace("_", " ").replace("vo ", "VO ")


def require(scope: Scope, caller: Caller, rules: AccessRules) -> Caller:
    """Return the caller with only its allowed roles.

    `NotAllowed` if none is left, or if the token is limited to capabilities that do not include the route's.
    """
    allowed = caller.within(rules.roles)
    if allowed is None:
        own = " and ".join(_in_words(one.role) for one in caller.each)
        raise NotAllowed(f"this is for {_list_roles(rules.roles)}; your role is {own}")
    if allowed.capabilities is not None:
        needed = rules.needs
        if needed is None and scope["method"] in ("GET", "HEAD"):
            needed = Capability.READ
        if needed not in allowed.capabilities:
            raise NotAllowed(f"the scopes of the token do not have {needed or 'what this needs'}")
    return allowed


def address(request: Request) -> str:
    """The host that a request comes from."""
    return request.client.host if request.client else "unknown"


def read_header(request: Request, name: bytes) -> str | None:
    """A header, by its name in lower case."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def bearer(request: Request) -> str:
    """The bearer token, or secret, of a request; `NotAuthenticated` without one."""
    return read_bearer(read_header(request, b"authorization") or "")


def read_bearer(authorization: str) -> str:
    """The bearer token, or secret, in the header `Authorization`; `NotAuthenticated` without one."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticated("this needs a token: Authorization: Bearer <token>")
    return token.strip()


def _rate_stranger(parts: Services) -> RequestRate:
    limits = parts.limits
    return _find_rate(parts.live.current, None, limits.burst_seconds, limits.strangers_per_second)


@derived
def _find_job_rate(config: Configuration, vo: str | None) -> RequestRate:
    an_hour = options_for(config, vo).limits.jobs_per_hour
    return RequestRate(per_second=an_hour / 3600, burst=an_hour)


@derived
def _find_rate(config: Configuration, vo: str | None, burst_seconds: float, most: float) -> RequestRate:
    per_second = min(options_for(config, vo).limits.requests_per_second, most)
    return RequestRate(per_second=per_second, burst=max(1, round(per_second * burst_seconds)))
