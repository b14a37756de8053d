"""PostgreSQL as we need it: READ COMMITTED, and no wait that never ends."""

import select
import time
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError
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
#: Seconds without use after which a connection is asked whether it still lives.
_IDLE_SECONDS = 1.0
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
    )
    event.listen(engine, "checkin", _note_return)
    event.listen(engine, "checkout", partial(_check_idle_connection, engine.dialect))
    event.listen(engine, "connect", _prepare if "options" in url.query else _prepare_and_limit)
    return engine


def is_pooled(conn: Connection) -> bool:
    """Whether a pooler such as pgbouncer stands between us and the server.

    The next transaction may then have another session: LISTEN, session locks and settings do not last.
    """
    return bool(conn.info.get("pooled", False))


def _note_return(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info["returned"] = time.monotonic()


def _check_idle_connection(
    dialect: Dialect, connection: Any, entry: ConnectionPoolEntry, _proxy: Any
) -> None:
    # A server that was restarted costs no request an error. One that answered a moment ago is not asked,
    # a way there and back for each transaction, unless it has said something by itself: its end.
    rested = time.monotonic() - entry.info.get("returned", time.monotonic())
    if rested < _IDLE_SECONDS and not _has_pending_data(connection):
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise DisconnectionError("the server has closed this connection") from error


def _has_pending_data(connection: Any) -> bool:
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _prepare_and_limit(connection: Any, entry: ConnectionPoolEntry) -> None:
    _prepare(connection, entry)
    # A session that others share is not ours to set: there the limits are those of the database role.
    if not entry.info["pooled"]:
        _query(connection, _SET_LIMITS)


def _prepare(connection: Any, entry: ConnectionPoolEntry) -> None:
    # A pooler tells its clients a process of its own making, since they have no server process for good.
    [session] = _query(connection, "SELECT pg_backend_pid()")
    entry.info["pooled"] = session != connection.info.backend_pid
    if entry.info["pooled"]:
        connection.prepare_threshold = None  # what one session has prepared the next one does not know


def _query(connection: Any, statement: str) -> Any:
    try:
        row = connection.execute(statement).fetchone()
        connection.commit()
    except BaseException:
        connection.close()  # nobody else has it yet
        raise
    return row
