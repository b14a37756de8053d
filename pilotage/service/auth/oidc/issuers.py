"""Trusted issuers: verification of their tokens, and their sign-in buttons."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from hashlib import sha256

import anyio.to_thread
import jwt

from pilotage.service.auth.callers import union
from pilotage.service.auth.oidc import discovery, signed_claims
from pilotage.service.auth.oidc import issuer as oidc_issuer
from pilotage.service.auth.oidc.discovery import IssuerKeys, Published
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.http_errors import NotAuthenticated
from requirements.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInWay:
    """A button of the login page."""

    title: str  #: label, e.g. the name of the issuer
    path: str  #: where signing in begins; `next` is added to its query


#: Bytes of a token; tokens of large communities list hundreds of groups.
_LONGEST = 16 << 10
#: Tokens of an issuer whose verified claims are cached.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    token: BearerToken
    claims: Mapping[str, object]


class TrustedIssuer:
    """One issuer with its keys."""

    def __init__(self, issuer: Issuer, fetch: Callable[[Issuer], Published] = discovery.fetch) -> None:
        self.issuer = issuer
        self.keys = IssuerKeys(partial(fetch, issuer))
        self._fetching = asyncio.Lock()
        self._forget()

    def verify(self, text: str, *, now: datetime) -> BearerToken:
        """Verify a token of this issuer, without network access.

        Raises:
            UnknownKey: It names a key that is not cached yet.
            NotAuthenticated: It is invalid, or its bearer has no role here.
        """
        read = self._read_once(text)
        signed_claims.check_times(read.claims, now=now)
        return read.token

    async def learn(self) -> None:
        """Fetch the issuer's keys unless just done; concurrent callers wait for the same fetch."""
        async with self._fetching:
            await anyio.to_thread.run_sync(self.refresh)

    def refresh(self) -> None:
        """Fetch the issuer's keys unless just done."""
        if self.keys.refresh(now=time.monotonic()):
            self._forget()

    def _forget(self) -> None:
        # One cache per key set: tokens signed by a withdrawn key must be verified again.
        self._read_once = lru_cache(maxsize=_REMEMBERED)(self._read)

    def _read(self, text: str) -> _Read:
        claims = signed_claims.read(text, self.issuer, self.keys, audiences=self.issuer.audiences)
        return _Read(token=_token(self.issuer, claims, text), claims=claims)


class Issuers:
    """All trusted issuers; none by default."""

    def __init__(self, trusted: Iterable[TrustedIssuer] = ()) -> None:
        self._trusted = tuple(trusted)

    def __bool__(self) -> bool:
        return bool(self._trusted)

    def __iter__(self) -> Iterator[TrustedIssuer]:
        return iter(self._trusted)

    @property
    def sign_in_ways(self) -> tuple[SignInWay, ...]:
        """The issuers that offer browser sign-in."""
        names = [each.issuer.name for each in self if each.issuer.sign_in is not None]
        return tuple(SignInWay(title=f"Sign in with {name}", path=f"/login/issuers/{name}") for name in names)

    def find(self, text: str) -> TrustedIssuer:
        """The issuer named in a token, which is not verified yet; `NotAuthenticated` if it is not trusted."""
        if self._trusted and len(text) <= _LONGEST:
            named = _issuer_named(text)
            for each in self._trusted:
                if each.issuer.is_named(named):
                    return each
        raise NotAuthenticated("the token is not one of ours, or it was changed")


def _issuer_named(text: str) -> object:
    try:
        return jwt.decode(text, options={"verify_signature": False}).get("iss")
    except (jwt.InvalidTokenError, ValueError, TypeError):
        return None


def _token(issuer: Issuer, claims: Mapping[str, object], text: str) -> BearerToken:
    try:
        caller = union(oidc_issuer.callers(issuer, claims))
    except InvalidRequest as error:
        raise NotAuthenticated(
            f"the token of {issuer.name} does not describe a valid caller: {error}"
        ) from None
    if caller is None:
        raise NotAuthenticated(f"none of the groups and scopes of the token of {issuer.name} has a role here")
    expires_at = signed_claims.time_of(claims, "exp")
    if expires_at is None:
        raise NotAuthenticated("the token never expires")
    return BearerToken(
        token_id=_token_id(issuer, claims, text),
        caller=caller,
        issued_at=signed_claims.time_of(claims, "iat") or expires_at,
        expires_at=expires_at,
        incarnation=1,
    )


def _token_id(issuer: Issuer, claims: Mapping[str, object], text: str) -> str:
    """The id for revocation; contains the issuer, so that none can choose the id of another's token."""
    jti = claims.get("jti")
    if isinstance(jti, str) and 0 < len(jti) <= 128:
        return f"{issuer.name}:{jti}"
    return f"{issuer.name}:{sha256(text.encode()).hexdigest()}"
