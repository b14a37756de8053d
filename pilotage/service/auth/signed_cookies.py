"""Signed (not encrypted) values stored in browser cookies."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import jwt
from jwt.types import Options

from pilotage.service.auth import keys
from pilotage.service.auth.keys import KeyRing
from pilotage.service.http_errors import NotAuthenticated

#: Different from the issuer of tokens, so that a cookie is never accepted as a token.
_ISSUER = "pilotage/sealed"


def seal(
    ring: KeyRing, purpose: str, content: Mapping[str, object], *, life: timedelta, now: datetime
) -> str:
    """Sign content for one purpose and lifetime; it is readable by its holder."""
    claims = {"iss": _ISSUER, "aud": purpose, "exp": int((now + life).timestamp()), "content": dict(content)}
    key = ring.signing
    return jwt.encode(claims, key.private, algorithm=keys.ALGORITHM, headers={"kid": key.key_id})


def unseal(ring: KeyRing, purpose: str, text: str, *, now: datetime) -> Mapping[str, object]:
    """Return the content; `NotAuthenticated` if it is expired, forged or for another purpose."""
    unchecked: Options = {"verify_exp": False, "require": ["iss", "aud", "exp", "content"]}
    try:
        key = ring.verifying[str(jwt.get_unverified_header(text).get("kid"))]
        claims = jwt.decode(
            text, key.public, algorithms=[keys.ALGORITHM], issuer=_ISSUER, audience=purpose, options=unchecked
        )
        is_over = now.timestamp() >= float(claims["exp"])
    except (jwt.InvalidTokenError, KeyError, ValueError, TypeError):
        raise NotAuthenticated("this was not begun here, or it was modified") from None
    if is_over or (key.until is not None and key.until <= now):
        raise NotAuthenticated("this took too long: begin again")
    content: Mapping[str, object] = claims["content"]
    return content
