"""Links that sign a browser in: who has a token asks for one, who follows it may what that token may."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from pilotage.service.auth import audit, callers
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.services import Services
from requirements.errors import NotAllowed
from taskqueue import login_tokens
from taskqueue.db import database

#: Roles of people; the others are programs, whose tokens lie where others may find them.
PEOPLE = frozenset({Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.OPERATOR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a link stands for."""

    caller: Caller
    until: datetime  #: the session lasts no longer than the token that the link was asked for with
    token_id: str  #: of that token; who revokes it ends the session


def issue(parts: Services, token: BearerToken, wanted: Caller) -> tuple[str, datetime]:
    """The secret of a link, and until when it is good.

    Args:
        parts: Of the service.
        token: Of who asks.
        wanted: What the session is to be.

    Raises:
        NotAllowed: That is more than the token may, or no person.
    """
    if wanted != token.caller and not token.caller.is_operator:
        raise NotAllowed("only operators ask for links for others; yours has the rights of your token")
    if wanted.role not in PEOPLE:
        raise NotAllowed(f"the role {wanted.role} is not a person's: it does not look at pages")
    session = {
        "caller": callers.claims_of(wanted),
        "until": int(token.expires_at.timestamp()),
        "token_id": token.token_id,
    }
    with database.writing(parts.engine) as conn:
        secret, expires_at = login_tokens.issue_link(conn, json.dumps(session), now=parts.clock())
    audit.done(token.caller, "login link", token_id=token.token_id, for_subject=wanted.subject)
    return secret, expires_at


def follow(parts: Services, secret: str) -> Login | None:
    """What the link with this secret stands for, once; None: it is not good, or its token was revoked."""
    # Who guesses only reads: on SQLite there is one writer at a time.
    with database.reading(parts.engine) as conn:
        if not login_tokens.is_link_known(conn, secret, now=parts.clock()):
            return None
    with database.writing(parts.engine) as conn:
        session = login_tokens.redeem_link(conn, secret, now=parts.clock())
    if session is None:
        return None
    said = json.loads(session)
    if said["token_id"] in parts.revoked:
        return None
    return Login(
        caller=callers.read(said["caller"]),
        until=datetime.fromtimestamp(said["until"], UTC),
        token_id=said["token_id"],
    )
