"""What we give a browser to keep for us: signed with our own key, so that it comes back as it was."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import jwt
from jwt.types import Options

from pilotage.service.auth import keys
from pilotage.service.auth.keys import KeyRing
from pilotage.service.http_errors import NotAuthenticated

#: Another issuer than that of tokens: nothing sealed is ever taken for one.
_ISSUER = "pilotage/sealed"


def seal(
    ring: KeyRing, purpose: str, content: Mapping[str, object], *, life: timedelta, now: datetime
) -> str:
    """The content for one purpose, good for a while; whoever has it can read it."""
    claims = {"iss": _ISSUER, "aud": purpose, "exp": int((now + life).timestamp()), "content": dict(content)}
    key = ring.signing
    return jwt.encode(claims, key.private, algorithm=keys.ALGORITHM, headers={"kid": key.key_id})


def unseal(ring: KeyRing, purpose: str, text: str, *, now: datetime) -> Mapping[str, object]:
    """The content.

    Raises:
        NotAuthenticated: We did not seal it, or for something else, or too long ago.
    """
    unchecked: Options = {"verify_exp": False, "require": ["iss", "aud", "exp", "content"]}
    try:
        key = ring.verifying[str(jwt.get_unverified_header(text).get("kid"))]
        claims = jwt.decode(
            text, key.public, algorithms=[keys.ALGORITHM], issuer=_ISSUER, audience=purpose, options=unchecked
        )
        is_over = now.timestamp() >= float(claims["exp"])
    except (jwt.InvalidTokenError, KeyError, ValueError, TypeError):
        raise NotAuthenticated("this was not begun here, or it was changed") from None
    if is_over or (key.until is not None and key.until <= now):
        raise NotAuthenticated("this took too long: begin again")
    content: Mapping[str, object] = claims["content"]
    return content
