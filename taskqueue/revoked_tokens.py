"""Tokens that were revoked before they expired."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from taskqueue.tables import revoked_tokens

_ALL = select(revoked_tokens.c.jti).where(revoked_tokens.c.expires_at > bindparam("now"))
_EXPIRED = delete(revoked_tokens).where(revoked_tokens.c.expires_at <= bindparam("now"))
_ADD = {
    "postgresql": postgresql.insert(revoked_tokens).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(revoked_tokens).on_conflict_do_nothing(),
}


def revoke(conn: Connection, token_id: str, *, expires_at: datetime, now: datetime) -> None:
    """Accept the token no more, until it expires by itself; a second time changes nothing."""
    conn.execute(_EXPIRED, {"now": now})
    conn.execute(_ADD[conn.dialect.name], {"jti": token_id, "expires_at": expires_at})


def all_of(conn: Connection, *, now: datetime) -> frozenset[str]:
    """The ids of all that are revoked and would be good otherwise."""
    return frozenset(conn.scalars(_ALL, {"now": now}))
