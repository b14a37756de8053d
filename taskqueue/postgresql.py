"""PostgreSQL as we need it: READ COMMITTED, and no wait that never ends."""

from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

#: No statement of ours takes longer than seconds: one that does is stuck and holds up others.
LIMITS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
# A database host that vanishes without a word is noticed within a minute, not after two hours.
_CONNECT = {
    "connect_timeout": "10",
    "application_name": "pilotage",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms
}
_SET_LIMITS = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', false)" for name, value in LIMITS.items()
)


def make_engine(url: URL, *, pool_size: int, pool_timeout: float) -> Engine:
    """Make an engine for psycopg; what the URL's query says of the connection goes before our settings."""
    settings = {name: value for name, value in _CONNECT.items() if name not in url.query}
    engine = create_engine(
        url.set(drivername="postgresql+psycopg").update_query_dict(settings),
        isolation_level="READ COMMITTED",
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=pool_timeout,
        pool_recycle=1800,
        pool_pre_ping=True,  # a server that was restarted costs no request an error
    )
    event.listen(engine, "connect", _prepare if "options" in url.query else _prepare_and_limit)
    return engine


def is_pooled(conn: Connection) -> bool:
    """Whether a pooler such as pgbouncer stands between us and the server.

    The next transaction may then have another session: LISTEN, session locks and settings do not last.
    """
    return bool(conn.info.get("pooled", False))


def _prepare_and_limit(connection: Any, entry: ConnectionPoolEntry) -> None:
    _prepare(connection, entry)
    # A session that others share is not ours to set: there the limits are those of the database role.
    if not entry.info["pooled"]:
        connection.execute(_SET_LIMITS)
        connection.commit()


def _prepare(connection: Any, entry: ConnectionPoolEntry) -> None:
    # A pooler tells its clients a process of its own making, since they have no server process for good.
    [session] = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.commit()
    entry.info["pooled"] = session != connection.info.backend_pid
    if entry.info["pooled"]:
        connection.prepare_threshold = None  # what one session has prepared the next one does not know
