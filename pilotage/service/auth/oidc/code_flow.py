"""Browser sign-in: the authorization code flow of OpenID Connect, with PKCE.

Source: OpenID Connect Core 1.0 §3.1, RFC 7636 (PKCE), RFC 9207 (issuer identification), RFC 9700 (threats).
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from secrets import token_urlsafe
from urllib.parse import quote, urlencode

import httpx

from pilotage.service.auth.oidc import discovery, issuers
from pilotage.service.auth.oidc.discovery import IssuerAway
from pilotage.service.auth.oidc.issuer import SignIn
from pilotage.service.auth.oidc.issuers import TrustedIssuer
from pilotage.service.auth.tokens import UnknownKey
from pilotage.service.http_errors import NotAuthenticated

#: Random bytes of each secret value.
_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt:
    """A sign-in in progress, stored in the browser that began it: no other browser can finish it."""

    issuer: str  #: by its name
    redirect_uri: str
    state: str
    nonce: str
    verifier: str


def begin(trusted: TrustedIssuer, redirect_uri: str) -> tuple[LoginAttempt, str]:
    """Create an attempt and the issuer's address to redirect to; `IssuerAway` if that is unknown."""
    attempt = LoginAttempt(
        issuer=trusted.issuer.name,
        redirect_uri=redirect_uri,
        state=token_urlsafe(_BYTES),
        nonce=token_urlsafe(_BYTES),
        verifier=token_urlsafe(_BYTES),
    )
    sign_in = _sign_in(trusted)
    query = {
        "response_type": "code",
        "client_id": sign_in.client_id,
        "redirect_uri": redirect_uri,
        "scope": " ".join(sign_in.scopes),
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": urlsafe_b64encode(sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    address = _endpoint(trusted, "authorization_endpoint")
    return attempt, f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"


def finish(
    trusted: TrustedIssuer,
    attempt: LoginAttempt,
    *,
    state: str,
    code: str,
    issuer: str | None = None,
    now: datetime,
) -> dict[str, object]:
    """Return the issuer's claims about the person who signed in, from what the browser brought back.

    `issuer` is its `iss`, if present. `NotAuthenticated` if that does not belong to this attempt or the
    claims are invalid; `IssuerAway` if the issuer does not answer or refuses the code.
    """
    if not hmac.compare_digest(state.encode(), attempt.state.encode()):
        raise NotAuthenticated("this sign-in was begun in another browser, or given up: begin again")
    if issuer is not None and not trusted.issuer.is_named(issuer):
        raise NotAuthenticated("the answer comes from another issuer")
    with discovery.client(trusted.issuer) as http:
        tokens = _exchange(http, trusted, attempt, code)
        claims = _id_claims(trusted, str(tokens.get("id_token", "")), nonce=attempt.nonce, now=now)
        return {**_user_info(http, trusted, tokens.get("access_token"), claims["sub"]), **claims}


def _exchange(
    http: httpx.Client, trusted: TrustedIssuer, attempt: LoginAttempt, code: str
) -> Mapping[str, object]:
    sign_in = _sign_in(trusted)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": attempt.redirect_uri,
        "client_id": sign_in.client_id,
        "code_verifier": attempt.verifier,
    }
    request = http.build_request(
        "POST", _endpoint(trusted, "token_endpoint"), data=form, headers={"Accept": "application/json"}
    )
    if sign_in.client_secret is not None:
        # Names and secrets are encoded before they become a basic credential (RFC 6749 §2.3.1).
        secret = httpx.BasicAuth(quote(sign_in.client_id, safe=""), quote(sign_in.client_secret, safe=""))
        request = next(secret.auth_flow(request))
    return discovery.read(http, trusted.issuer, request)


def _id_claims(trusted: TrustedIssuer, text: str, *, nonce: str, now: datetime) -> Mapping[str, object]:
    client_id = _sign_in(trusted).client_id
    read = partial(issuers.read_claims, text, trusted.issuer, trusted.keys, audiences=[client_id])
    try:
        claims = read()
    except UnknownKey:
        trusted.refresh()
        claims = read()
    issuers.check_times(claims, now=now)
    is_shared = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if is_shared else client_id) != client_id:
        raise NotAuthenticated("the issuer's token is for another client")
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise NotAuthenticated("the issuer's answer is to another sign-in: begin again")
    return claims


def _user_info(
    http: httpx.Client, trusted: TrustedIssuer, access_token: object, subject: object
) -> Mapping[str, object]:
    """Further claims; many issuers list groups only there."""
    if not isinstance(access_token, str) or "userinfo_endpoint" not in trusted.keys.endpoints:
        return {}
    info = discovery.get(http, trusted.issuer, _endpoint(trusted, "userinfo_endpoint"), access_token)
    if info.get("sub") != subject:
        raise NotAuthenticated("the issuer's user info belongs to another person")
    return info


def _endpoint(trusted: TrustedIssuer, name: str) -> str:
    if not trusted.keys.endpoints:
        trusted.refresh()
    if not trusted.keys.endpoints:
        raise IssuerAway(f"{trusted.issuer.name} does not answer")
    return discovery.endpoint(trusted.issuer, trusted.keys.endpoints, name)


def _sign_in(trusted: TrustedIssuer) -> SignIn:
    if trusted.issuer.sign_in is None:
        raise NotAuthenticated(f"sign-in with {trusted.issuer.name} is not configured here")
    return trusted.issuer.sign_in
