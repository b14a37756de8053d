"""Browser sessions: a token of the installation in a cookie that scripts cannot read."""

import hashlib
import hmac
from datetime import datetime, timedelta
from secrets import token_hex
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from pilotage.service.auth import access, audit, login_links
from pilotage.service.auth.callers import Caller, Grant
from pilotage.service.auth.tokens import session_of
from pilotage.service.services import Services

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
    """Start a session after an authenticated sign-in, and redirect to a page of ours.

    The session ends with the credential (`until`), and if the token used to sign in (`token_id`) is revoked.
    """
    now = parts.clock()
    longest = login_links.LONGEST_SESSION
    ttl = longest if until is None else min(longest, until - now)
    session_id = token_hex(16) if token_id is None else session_of(token_id)
    text, _ = parts.tokens.mint(Grant(caller=caller, ttl=ttl), now=now, token_id=session_id)
    audit.done(caller, "login", address=access.address(request), token_id=session_id)
    answer = RedirectResponse(local(next_page), 303)
    set_cookie(request, answer, cookie_name(request), text, ttl)
    return answer


def set_cookie(request: Request, answer: Response, name: str, value: str, life: timedelta) -> None:
    """Set a cookie that scripts cannot read and forms of other sites do not send; a life of 0 deletes it."""
    seconds = max(0, int(life.total_seconds()))
    secure = is_secure(request)
    answer.set_cookie(name, value, max_age=seconds, secure=secure, httponly=True, samesite="lax")


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
