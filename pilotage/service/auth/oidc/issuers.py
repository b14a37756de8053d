"""Trusted issuers: verification of their tokens, claims and times."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from hashlib import sha256

import anyio.to_thread
import jwt
from jwt.types import Options

from pilotage.service.auth import tokens
from pilotage.service.auth.callers import union
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.oidc import issuer as oidc_issuer
from pilotage.service.auth.oidc.discovery import KEY_TYPES, IssuerKeys, Published
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.tokens import BearerToken, UnknownKey
from pilotage.service.http_errors import NotAuthenticated
from requirements.errors import InvalidRequest

#: Bytes of a token; tokens of large communities list hundreds of groups.
_LONGEST = 16 << 10
#: Tokens of an issuer whose verified claims are cached.
_REMEMBERED = 4096
#: Tolerated clock skew between issuers and this host.
LEEWAY = timedelta(seconds=30)
#: Issuer names may differ by a slash; times are checked against the caller's clock.
_UNCHECKED: Options = {
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "verify_iss": False,
    "require": ["iss", "sub", "aud", "exp"],
}

_WITHOUT_AUDIENCE: Options = {**_UNCHECKED, "require": ["iss", "sub", "exp"]}


class TrustedIssuer:
    """One issuer with its keys."""

    def __init__(self, issuer: Issuer, fetch: Callable[[Issuer], Published] = discovery.fetch) -> None:
        self.issuer = issuer
        self.keys = IssuerKeys(partial(fetch, issuer))
        self._fetching = asyncio.Lock()
        self._forget()

    def verify(self, text: str, *, now: datetime) -> BearerToken:
        """Verify a token of this issuer, without network access.

        `UnknownKey` if it names a key that is not cached yet; `NotAuthenticated` if it is invalid, or its
        bearer has no role here.
        """
        token, claims = self._read_once(text)
        check_times(claims, now=now)
        return token

    async def learn(self) -> None:
        """Fetch the issuer's keys unless just done; concurrent callers wait for the same fetch."""
        async with self._fetching:
            await anyio.to_thread.run_sync(self.refresh)

    def refresh(self) -> None:
        """Fetch the issuer's keys unless just done."""
        if self.keys.refresh(now=time.monotonic()):
            self._forget()

    async def read(self, text: str, *, now: datetime) -> tuple[str, Mapping[str, object]]:
        """The id of a token of this issuer and its claims, whatever its roles; keys are fetched if needed."""
        read = partial(read_claims, text, self.issuer, self.keys, audiences=self.issuer.audiences)
        try:
            claims = read()
        except UnknownKey:
            await self.learn()
            claims = read()
        check_times(claims, now=now)
        return _name_token(self.issuer, claims, text), claims

    def _forget(self) -> None:
        # One cache per key set: tokens signed by a withdrawn key must be verified again.
        self._read_once = lru_cache(maxsize=_REMEMBERED)(self._read)

    def _read(self, text: str) -> tuple[BearerToken, Mapping[str, object]]:
        claims = read_claims(text, self.issuer, self.keys, audiences=self.issuer.audiences)
        return _token(self.issuer, claims, text), claims


class Issuers:
    """The OpenID Connect issuers whose tokens the service accepts; none by default."""

    def __init__(self, trusted: Iterable[TrustedIssuer] = ()) -> None:
        self._trusted = tuple(trusted)

    def __bool__(self) -> bool:
        return bool(self._trusted)

    def __iter__(self) -> Iterator[TrustedIssuer]:
        return iter(self._trusted)

    def find(self, text: str) -> TrustedIssuer:
        """The issuer named in a token, which is not verified yet; `NotAuthenticated` if it is not trusted."""
        named = None
        if len(text) <= _LONGEST:
            with suppress(jwt.InvalidTokenError, ValueError, TypeError):
                named = jwt.decode(text, options={"verify_signature": False}).get("iss")
        for each in self._trusted:
            if each.issuer.is_named(named):
                return each
        if named == tokens.ISSUER:
            raise NotAuthenticated(
                "the key that signed this token is none of this service's: it was retired, or the token is "
                "of another installation; get a new token"
            )
        raise NotAuthenticated("the token is not one of ours, or it was changed")


def _token(issuer: Issuer, claims: Mapping[str, object], text: str) -> BearerToken:
    try:
        caller = union(oidc_issuer.callers(issuer, claims))
    except InvalidRequest as error:
        raise NotAuthenticated(
            f"the token of {issuer.name} does not describe a valid caller: {error}"
        ) from None
    if caller is None:
        raise NotAuthenticated(f"none of the groups and scopes of the token of {issuer.name} has a role here")
    expires_at = time_of(claims, "exp")
    if expires_at is None:
        raise NotAuthenticated("the token never expires")
    return BearerToken(
        token_id=_name_token(issuer, claims, text),
        caller=caller,
        issued_at=time_of(claims, "iat") or expires_at,
        expires_at=expires_at,
    )


def _name_token(issuer: Issuer, claims: Mapping[str, object], text: str) -> str:
    """The id by which a token is revoked, with the issuer's name: none can choose that of another's token."""
    jti = claims.get("jti")
    is_usable = isinstance(jti, str) and 0 < len(jti) <= 128
    return f"{issuer.name}:{jti if is_usable else sha256(text.encode()).hexdigest()}"


def read_claims(
    text: str, issuer: Issuer, keys: IssuerKeys, *, audiences: Collection[str]
) -> Mapping[str, object]:
    """Verify signature, issuer and audience of a token and return its claims; times are not checked.

    `UnknownKey` if none of the cached keys signed it: the issuer may have new ones.
    """
    try:
        header = jwt.get_unverified_header(text)
    except jwt.InvalidTokenError:
        raise NotAuthenticated("the token is not a signed one") from None
    algorithm, key_id = str(header.get("alg")), header.get("kid")
    if algorithm not in KEY_TYPES:
        raise NotAuthenticated(f"the token is signed by {algorithm!r:.40}, which is not an allowed algorithm")
    # Without a list of audiences, a token that names one is refused.
    options = _UNCHECKED if audiences else _WITHOUT_AUDIENCE
    for key in keys.find(key_id=key_id, algorithm=algorithm):
        try:
            claims: Mapping[str, object] = jwt.decode(
                text, key, algorithms=[algorithm], audience=sorted(audiences) or None, options=options
            )
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):  # such as one of another curve
            continue
        except jwt.InvalidAudienceError:
            raise NotAuthenticated(f"the token of {issuer.name} is meant for another audience") from None
        except (jwt.InvalidTokenError, ValueError, TypeError):
            raise NotAuthenticated(f"the token of {issuer.name} is not good") from None
        if not issuer.is_named(claims["iss"]):
            raise NotAuthenticated(f"the token is not of {issuer.name}")
        return claims
    raise UnknownKey(f"the token is not signed by a key of {issuer.name}")


def check_times(claims: Mapping[str, object], *, now: datetime) -> None:
    """Raise `NotAuthenticated` for a token that has expired or is not valid yet."""
    expires_at = time_of(claims, "exp")
    if expires_at is None or now >= expires_at + LEEWAY:
        raise NotAuthenticated("the token has expired")
    for name in ("nbf", "iat"):
        since = time_of(claims, name)
        if since is not None and now < since - LEEWAY:
            raise NotAuthenticated(f"the token is not good yet ({name}): compare the clocks")


def time_of(claims: Mapping[str, object], name: str) -> datetime | None:
    """A time claim; None without one, `NotAuthenticated` if it is not a time."""
    value = claims.get(name)
    if value is None:
        return None
    try:
        return datetime.fromtimestamp(float(value), UTC)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        raise NotAuthenticated(f"{name} of the token is not a time") from None
