"""Tokens: signed JWTs of the installation, minted, verified and revoked; signed values of browser cookies."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import accumulate
from secrets import token_hex
from threading import Lock

import jwt
from jwt.types import Options
from sqlalchemy import Engine

from pilotage.service.auth import callers, keys, login_tokens
from pilotage.service.auth.callers import Caller, Grant
from pilotage.service.auth.keys import KeyRing
from pilotage.service.http_errors import ClockBehind, NotAuthenticated
from requirements.errors import InvalidRequest
from taskqueue.db import database

ISSUER = "pilotage"
#: Bytes of a token; minted tokens are much shorter.
_LONGEST = 8192
#: Tokens whose verified claims are cached.
_REMEMBERED = 8192
#: Clock skew tolerated between the hosts that mint and verify our tokens.
_LEEWAY = timedelta(seconds=30)
#: Times are checked by `verify` against the clock of its argument.
_UNCHECKED: Options = {
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "require": ["iss", "sub", "jti", "iat", "exp"],
}
_NOT_OURS = "the token is not one of ours, or it was changed"


class UnknownKey(NotAuthenticated):
    """The token names a key that is not in the key file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """The content of a verified token."""

    token_id: str  #: `jti`; revocation names it
    caller: Caller
    issued_at: datetime
    expires_at: datetime  #: or when the key that signed it is retired, if that is sooner
    is_cut_short: bool = False  #: whether it is


class Tokens:
    """Mint and verify the tokens of one installation."""

    def __init__(
        self,
        ring: KeyRing,
        *,
        changed: Callable[[], KeyRing | None] = lambda: None,
        incarnation: Callable[[], int] = lambda: 1,
    ) -> None:
        """Create it with the current keys; `changed` returns them if they have changed since its last call.

        `incarnation` returns that of the installation. Tokens of an earlier one remain valid: the holder of a
        job may report it, and the lease decides whether the report counts.
        """
        self._changed = changed
        self._incarnation = incarnation
        self._changing = Lock()
        self._use(ring)

    @property
    def keys(self) -> KeyRing:
        """The current keys."""
        return self._ring

    def refresh(self) -> bool:
        """Load changed keys, if there are any; return whether there were."""
        with self._changing:
            ring = self._changed()
            if ring is None:
                return False
            self._use(ring)
            return True

    def _use(self, ring: KeyRing) -> None:
        self._ring = ring
        # One cache per key ring: tokens signed by a retired key must be verified again.
        self._read_once = lru_cache(maxsize=_REMEMBERED)(partial(_read, ring))

    def mint(self, grant: Grant, *, now: datetime, token_id: str | None = None) -> tuple[str, datetime]:
        """Sign a token for the grant: the token and its expiry.

        `token_id` is that of the token that this one renews: they are revoked together.
        """
        expires_at = now.replace(microsecond=0) + grant.ttl
        claims = callers.claims_of(grant.caller) | {
            "iss": ISSUER,
            "jti": token_id or token_hex(16),
            "iat": int(now.timestamp()),
            "exp": int(expires_at.timestamp()),
            "incarnation": self._incarnation(),
        }
        key = self._ring.signing
        headers = {"kid": key.key_id}
        return jwt.encode(claims, key.private, algorithm=keys.ALGORITHM, headers=headers), expires_at

    def verify(self, text: str, *, now: datetime) -> BearerToken:
        """Verify a token.

        `UnknownKey` if it is not ours: another issuer may have signed it. `ClockBehind` if it is ours and
        was issued in the future of this clock. The message reveals no more than its bearer may see.
        """
        if len(text) > _LONGEST:
            raise UnknownKey("the token is too long to be one of ours")
        read = self._read_once
        try:
            token = read(text)
        except UnknownKey:
            self.refresh()  # another process may have rotated the keys
            if self._read_once is read:
                raise
            token = self._read_once(text)
        if token.expires_at <= now:
            why = "its key was retired" if token.is_cut_short else "it expired"
            raise NotAuthenticated(
                f"the token is not valid any more: {why} at {token.expires_at.isoformat()}"
            )
        if token.issued_at > now + _LEEWAY:
            ahead = (token.issued_at - now).total_seconds()
            raise ClockBehind(f"the token will be valid in {ahead:.0f} s: compare the clocks of the hosts")
        return token


def _read(ring: KeyRing, text: str) -> BearerToken:
    try:
        key = ring.verifying.get(str(jwt.get_unverified_header(text).get("kid")))
        if key is None:
            raise UnknownKey(_NOT_OURS)
        payload = jwt.decode(text, key.public, algorithms=[keys.ALGORITHM], issuer=ISSUER, options=_UNCHECKED)
        return _token(payload, until=key.until)
    except (jwt.InvalidTokenError, InvalidRequest, KeyError, TypeError, ValueError, OverflowError, OSError):
        raise NotAuthenticated(_NOT_OURS) from None


def _token(payload: Mapping[str, object], *, until: datetime | None) -> BearerToken:
    expires_at = _time(payload["exp"])
    return BearerToken(
        token_id=str(payload["jti"]),
        caller=callers.read(payload),
        issued_at=_time(payload["iat"]),
        expires_at=expires_at if until is None else min(expires_at, until),
        is_cut_short=until is not None and until < expires_at,
    )


def _time(claim: object) -> datetime:
    return datetime.fromtimestamp(int(str(claim)), UTC)


#: Separates the token's id from the suffix of a session id.
_SESSION = "~"

_log = logging.getLogger(__name__)


class RevokedTokens:
    """Revoked tokens of all processes, at most one refresh late."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._clock = clock
        self._token_ids: frozenset[str] = frozenset()

    def __contains__(self, token_id: str) -> bool:
        if not self._token_ids:
            return False
        prefixes = accumulate(token_id.split(_SESSION), lambda whole, part: f"{whole}{_SESSION}{part}")
        return any(each in self._token_ids for each in prefixes)

    def refresh(self) -> None:
        """Read them from the database; while it is unavailable, the last known ones stay."""
        try:
            with database.reading(self._engine) as conn:
                self._token_ids = login_tokens.list_revoked(conn, now=self._clock())
        except database.UNAVAILABLE as error:
            _log.warning("the revoked tokens could not be read: %s", error)


def session_of(token_id: str) -> str:
    """Create a session id that is revoked with the token; revoking the session leaves the token valid."""
    return f"{token_id}{_SESSION}{token_hex(8)}"


def sibling_session_of(session_id: str) -> str:
    """Create the id of another session of the same person: revoked with the token that began the first."""
    root, has_token, _ = session_id.partition(_SESSION)
    return session_of(root) if has_token else token_hex(16)


#: Different from the issuer of tokens, so that a cookie is never accepted as a token.
_COOKIES = "pilotage/sealed"


def seal(
    ring: KeyRing, purpose: str, content: Mapping[str, object], *, life: timedelta, now: datetime
) -> str:
    """Sign content for one purpose and lifetime; it is readable by its holder."""
    claims = {"iss": _COOKIES, "aud": purpose, "exp": int((now + life).timestamp()), "content": dict(content)}
    key = ring.signing
    return jwt.encode(claims, key.private, algorithm=keys.ALGORITHM, headers={"kid": key.key_id})


def unseal(ring: KeyRing, purpose: str, text: str, *, now: datetime) -> Mapping[str, object]:
    """Return the content; `NotAuthenticated` if it is expired, forged or for another purpose."""
    unchecked: Options = {"verify_exp": False, "require": ["iss", "aud", "exp", "content"]}
    try:
        key = ring.verifying[str(jwt.get_unverified_header(text).get("kid"))]
        claims = jwt.decode(
            text,
            key.public,
            algorithms=[keys.ALGORITHM],
            issuer=_COOKIES,
            audience=purpose,
            options=unchecked,
        )
        is_over = now.timestamp() >= float(claims["exp"])
    except (jwt.InvalidTokenError, KeyError, ValueError, TypeError):
        raise NotAuthenticated("this was not begun here, or it was modified") from None
    if is_over or (key.until is not None and key.until <= now):
        raise NotAuthenticated("this took too long: begin again")
    content: Mapping[str, object] = claims["content"]
    return content
