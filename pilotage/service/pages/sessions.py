"""Browser sessions: a token of the installation in a cookie that scripts cannot read."""

import hashlib
import hmac
from datetime import datetime, timedelta
from secrets import token_hex
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from pilotage.service.auth import access, audit
from pilotage.service.auth.callers import Caller, Grant
from pilotage.service.auth.tokens import session_of
from pilotage.service.services import Services

#: Longest session.
LIFE = timedelta(hours=12)
#: Characters of an address to return to.
LONGEST_ADDRESS = 2000

_HTTP_PORT = 80


def cookie_name(request: Request) -> str:
    """Name of the cookie: with TLS bound to the host, else with the port, which cookies ignore."""
    if is_secure(request):
        return "__Host-pilotage"
    return f"pilotage-{request.url.port or _HTTP_PORT}"


def is_secure(request: Request) -> bool:
    """Whether the browser used TLS, to us or to a trusted proxy."""
    return request.url.scheme == "https"


def token_of(request: Request) -> str | None:
    """The token of the session, or None."""
    return request.cookies.get(cookie_name(request)) or None


def csrf_of(token: str) -> str:
    """The CSRF token, derived from the session's token without revealing it."""
    return hmac.new(token.encode(), b"pilotage csrf", hashlib.sha256).hexdigest()


def begin(
    request: Request,
    parts: Services,
    caller: Caller,
    *,
    until: datetime | None = None,
    token_id: str | None = None,
    next_page: str = "/",
) -> RedirectResponse:
    """Start a session and redirect to a page.

    Args:
        request: The authenticated sign-in.
        parts: Dependencies.
        caller: Determines the rights of the session.
        until: Expiry of the credential: the session lasts no longer.
        token_id: Id of the token used to sign in: revoking it ends the session.
        next_page: Where to redirect; an address of another host is replaced by the first page.
    """
    now = parts.clock()
    ttl = LIFE if until is None else min(LIFE, until - now)
    session_id = token_hex(16) if token_id is None else session_of(token_id)
    text, _ = parts.tokens.mint(Grant(caller=caller, ttl=ttl), now=now, token_id=session_id)
    audit.done(caller, "login", address=access.address(request), token_id=session_id)
    answer = RedirectResponse(local(next_page), 303)
    answer.set_cookie(
        cookie_name(request),
        text,
        max_age=max(0, int(ttl.total_seconds())),
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return answer


def end(request: Request, answer: Response) -> None:
    """Delete the session's cookie."""
    answer.delete_cookie(cookie_name(request), secure=is_secure(request), httponly=True, samesite="lax")


def local(address: str) -> str:
    """The address if it is one of our pages, else `/`."""
    plain = address.isprintable() and "\\" not in address
    if not plain or not address.startswith("/") or address.startswith("//"):
        return "/"
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    return address if not parts.scheme and not parts.netloc else "/"
