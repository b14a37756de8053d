"""One-use links: who follows one first gets its session. The database keeps the digest of its secret only."""

from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe

from sqlalchemy import Connection, and_, bindparam, delete, insert, select

from taskqueue.tables import login_links as table

#: A link is good for so long: somebody is about to follow it.
LIFE = timedelta(minutes=5)
#: Random bytes of a secret: nobody guesses it, so a plain digest is all the protection that it needs.
_BYTES = 32

_ADD = insert(table)
_EXPIRED = delete(table).where(table.c.expires_at <= bindparam("now"))
_is_good = and_(table.c.digest == bindparam("shown"), table.c.expires_at > bindparam("now"))
_KNOWN = select(table.c.digest).where(_is_good)
_TAKE = delete(table).where(_is_good).returning(table.c.session)


def issue(conn: Connection, session: str, *, now: datetime) -> tuple[str, datetime]:
    """The secret of a new link to a session, and until when it is good; those that expired go."""
    secret, expires_at = token_urlsafe(_BYTES), now + LIFE
    conn.execute(_EXPIRED, {"now": now})
    conn.execute(_ADD, {"digest": _digest(secret), "session": session, "expires_at": expires_at})
    return secret, expires_at


def is_known(conn: Connection, secret: str, *, now: datetime) -> bool:
    """Whether there is such a link, which nobody has followed yet; whoever guesses writes nothing."""
    return conn.execute(_KNOWN, {"shown": _digest(secret), "now": now}).first() is not None


def take(conn: Connection, secret: str, *, now: datetime) -> str | None:
    """The session of the link, once; None: it was followed before, or expired, or there never was one."""
    found: str | None = conn.execute(_TAKE, {"shown": _digest(secret), "now": now}).scalar_one_or_none()
    return found


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
