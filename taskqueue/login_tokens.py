"""One-time login links and revoked tokens. The database stores only the digest of a link's secret."""

from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe

from sqlalchemy import Connection, and_, bindparam, delete, insert, select

from taskqueue.db import sql
from taskqueue.schema.tables import login_links as table
from taskqueue.schema.tables import revoked_tokens

#: Lifetime of a link: it is used immediately.
LINK_LIFETIME = timedelta(minutes=5)
#: Random bytes of a secret: too many to guess, so that a plain digest is sufficient protection.
_SECRET_BYTES = 32

_ADD_LINK = insert(table)
_EXPIRED_LINKS = delete(table).where(table.c.expires_at <= bindparam("now"))
_is_good = and_(table.c.digest == bindparam("shown"), table.c.expires_at > bindparam("now"))
_READ_LINK = select(table.c.session).where(_is_good)
_REDEEM_LINK = delete(table).where(_is_good).returning(table.c.session)


def issue_link(conn: Connection, session: str, *, now: datetime) -> tuple[str, datetime]:
    """Create a link for a session; its secret and expiry. Expired links are deleted."""
    secret, expires_at = token_urlsafe(_SECRET_BYTES), now + LINK_LIFETIME
    conn.execute(_EXPIRED_LINKS, {"now": now})
    conn.execute(_ADD_LINK, {"digest": _digest(secret), "session": session, "expires_at": expires_at})
    return secret, expires_at


def read_link(conn: Connection, secret: str, *, now: datetime) -> str | None:
    """The session of an unused link, which stays good; read-only, so that guessing causes no writes."""
    found: str | None = conn.execute(_READ_LINK, {"shown": _digest(secret), "now": now}).scalar_one_or_none()
    return found


def redeem_link(conn: Connection, secret: str, *, now: datetime) -> str | None:
    """The session of the link, once; None: it was used before, expired, or never existed."""
    found: str | None = conn.execute(
        _REDEEM_LINK, {"shown": _digest(secret), "now": now}
    ).scalar_one_or_none()
    return found


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


_REVOKED = select(revoked_tokens.c.jti).where(revoked_tokens.c.expires_at > bindparam("now"))
_EXPIRED_TOKENS = delete(revoked_tokens).where(revoked_tokens.c.expires_at <= bindparam("now"))
_ADD_REVOKED = sql.insert_or_skip(revoked_tokens)


def revoke_token(conn: Connection, token_id: str, *, expires_at: datetime, now: datetime) -> None:
    """Reject the token until it expires by itself; idempotent."""
    conn.execute(_EXPIRED_TOKENS, {"now": now})
    conn.execute(_ADD_REVOKED.to_statement(conn), {"jti": token_id, "expires_at": expires_at})


def list_revoked(conn: Connection, *, now: datetime) -> frozenset[str]:
    """Ids of revoked tokens that have not expired."""
    return frozenset(conn.scalars(_REVOKED, {"now": now}))
