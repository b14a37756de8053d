"""Claims of an issuer's token after checks of signature, audience and times."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import jwt
from jwt.types import Options

from pilotage.service.auth.oidc.discovery import KEY_TYPES, IssuerKeys
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.tokens import UnknownKey
from pilotage.service.http_errors import NotAuthenticated

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


def read(text: str, issuer: Issuer, keys: IssuerKeys, *, audiences: Collection[str]) -> Mapping[str, object]:
    """Verify signature, issuer and audience of a token and return its claims; times are not checked.

    Raises:
        UnknownKey: None of the cached keys signed it; the issuer may have new ones.
        NotAuthenticated: It is invalid.
    """
    try:
        header = jwt.get_unverified_header(text)
    except jwt.InvalidTokenError:
        raise NotAuthenticated("the token is not a signed one") from None
    algorithm, key_id = str(header.get("alg")), header.get("kid")
    if algorithm not in KEY_TYPES:
        raise NotAuthenticated(f"the token is signed by {algorithm!r:.40}, which is not an allowed algorithm")
    for key in keys.find(key_id=key_id, algorithm=algorithm):
        try:
            return _decode(text, key.key, algorithm, issuer, audiences)
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):  # such as one of another curve
            continue
    raise UnknownKey(f"the token is not signed by a key of {issuer.name}")


def _decode(
    text: str, key: object, algorithm: str, issuer: Issuer, audiences: Collection[str]
) -> Mapping[str, object]:
    try:
        claims: Mapping[str, object] = jwt.decode(
            text,
            key,  # type: ignore[arg-type]
            algorithms=[algorithm],
            audience=sorted(audiences),
            options=_UNCHECKED,
        )
    except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
        raise
    except jwt.InvalidAudienceError:
        raise NotAuthenticated(f"the token of {issuer.name} is meant for another audience") from None
    except (jwt.InvalidTokenError, ValueError, TypeError):
        raise NotAuthenticated(f"the token of {issuer.name} is not good") from None
    if not issuer.is_named(claims["iss"]):
        raise NotAuthenticated(f"the token is not of {issuer.name}")
    return claims


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
