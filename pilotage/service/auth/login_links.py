"""One-time links that sign a browser in with the rights of the token that requested them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pilotage.service.auth import access, audit, callers, login_tokens
from pilotage.service.auth.callers import Caller, Grant, Role
from pilotage.service.auth.login_tokens import Purpose
from pilotage.service.auth.tokens import BearerToken, sibling_session_of
from pilotage.service.http_errors import NotAuthenticated
from pilotage.service.services import Services
from requirements.errors import NotAllowed
from taskqueue.db import database

#: Roles of people. The others are programs, whose tokens are stored where others may find them.
PEOPLE = frozenset({Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.OPERATOR})
#: Longest session of a browser, and longest lifetime of the token of a command line.
LONGEST_SESSION = timedelta(hours=12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The session that a link starts."""

    caller: Caller
    until: datetime  #: the session ends no later than the token that requested the link
    token_id: str  #: of that token; revoking it ends the session


def issue(parts: Services, token: BearerToken, wanted: Caller) -> tuple[str, datetime]:
    """Create a link for the session `wanted`: its secret, and its expiry."""
    if wanted != token.caller and not token.caller.is_operator:
        raise NotAllowed("only operators may create links for others; your link has the rights of your token")
    if wanted.role not in PEOPLE:
        raise NotAllowed(f"the role {wanted.role} is not a person's: it cannot use pages")
    session = _write_session(wanted, token.expires_at, token.token_id)
    with database.writing(parts.engine) as conn:
        secret, expires_at = login_tokens.issue_link(conn, session, now=parts.clock())
    audit.done(token.caller, "login link", token_id=token.token_id, for_subject=wanted.subject)
    return secret, expires_at


def confirm_device(parts: Services, token: BearerToken, code: str) -> bool:
    """Let the command line with this code act as the person of a session; False: no such code waits."""
    session = _write_session(token.caller, token.expires_at, sibling_session_of(token.token_id))
    with database.writing(parts.engine) as conn:
        is_confirmed = login_tokens.confirm_device(conn, code, session, now=parts.clock())
    if is_confirmed:
        audit.done(token.caller, "device login", token_id=token.token_id)
    return is_confirmed


def fetch_device_token(parts: Services, secret: str) -> tuple[str, datetime] | None:
    """The token of a command line whose code was confirmed, once; None: not confirmed yet.

    `NotAuthenticated` if the code has expired or its token was fetched.
    """
    now = parts.clock()
    with database.reading(parts.engine) as conn:
        is_waiting = login_tokens.is_device_waiting(conn, secret, now=now)
    if is_waiting:
        return None
    found = follow(parts, secret, Purpose.DEVICE)
    if found is None:
        raise NotAuthenticated("the code of this login has expired: begin again")
    grant = Grant(caller=found.caller, ttl=min(LONGEST_SESSION, found.until - now))
    return parts.tokens.mint(grant, now=now, token_id=found.token_id)


def _write_session(caller: Caller, until: datetime, token_id: str) -> str:
    return json.dumps(
        {"caller": callers.claims_of(caller), "until": int(until.timestamp()), "token_id": token_id}
    )


def look(parts: Services, secret: str, purpose: Purpose = Purpose.BROWSER) -> Login | None:
    """The session that a link starts, without redeeming it; None as for `follow`."""
    with database.reading(parts.engine) as conn:
        session = login_tokens.read_link(conn, secret, purpose, now=parts.clock())
    return None if session is None else _read_session(parts, session)


def follow(parts: Services, secret: str, purpose: Purpose = Purpose.BROWSER) -> Login | None:
    """Redeem a link once; None: it is invalid, or its token was revoked."""
    # Looked at first: wrong secrets must not take the write lock, since SQLite has one writer at a time.
    if (found := look(parts, secret, purpose)) is None:
        return None
    access.count_sign_in(parts, found.caller)
    with database.writing(parts.engine) as conn:
        session = login_tokens.redeem_link(conn, secret, purpose, now=parts.clock())
    return None if session is None else _read_session(parts, session)


def _read_session(parts: Services, session: str) -> Login | None:
    claims = json.loads(session)
    if claims["token_id"] in parts.revoked:
        return None
    return Login(
        caller=callers.read(claims["caller"]),
        until=datetime.fromtimestamp(claims["until"], UTC),
        token_id=claims["token_id"],
    )
