"""PostgreSQL settings: READ COMMITTED, one core and no JIT for a statement, times in UTC, bounded waits.

A role or a database may have another default isolation, with which statements fail that here wait and look
again. SQLAlchemy's transactions begin with `BEGIN ISOLATION LEVEL READ COMMITTED`. Statements outside of a
transaction need it as the default of their session, or, through a pooler, where the next statement may run in
another session, a transaction of their own (`compiled_sql`).

JIT compilation (LLVM) is on in most distributions. It takes a second of CPU for a claim, each time: the
estimated cost of a long statement is high, however few rows it reads. With parallel plans
what an agent counts once a minute takes all cores for a second, hardly less than on one of them, and requests
for work wait.
"""

import select
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

#: Our statements take seconds at most: one that takes longer is stuck and blocks others.
LIMITS = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "60s"}
# Notice a lost database host within a minute instead of two hours.
_CONNECT = {
    "connect_timeout": "10",
    "application_name": "pilotage",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms
}
#: read_only_sql_transaction: a standby, or a server that was made read-only.
_READ_ONLY = "25006"
#: feature_not_supported. Most causes are faults of ours, but a standby answers so to the begin of a
#: transaction that writes, or is SERIALIZABLE by default; then it comes from these functions of the server.
_NOT_SUPPORTED = "0A000"
_STANDBY_FUNCTIONS = frozenset({"call_bool_check_hook", "GetSerializableTransactionSnapshot"})
#: Idle seconds after which a connection is pinged before its next use.
IDLE_SECONDS = 1.0
#: The driver reads times in the style ISO only, and answers have them in UTC, whatever the server's zone is.
_SESSION = {
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "DateStyle": "ISO",
    "TimeZone": "UTC",
}


def _write_settings(settings: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(
        f"set_config('{name}', '{value}', false)" for name, value in settings.items()
    )


SET_SESSION = _write_settings(_SESSION)
SET_LIMITS = _write_settings(LIMITS)
READ_PROCESS = "SELECT pg_backend_pid()"


def begin_session(connection: Any, process: int | None, url: URL) -> tuple[str, ...]:
    """The statements that begin a session, by what the server answered to `READ_PROCESS`.

    None through a pooler, which reports a made-up process id to its clients, since they have no fixed server
    process: there nothing is prepared either.
    """
    if process != connection.info.backend_pid:
        connection.prepare_threshold = None  # prepared statements do not exist in the next session
        return ()
    return (SET_SESSION,) if "options" in url.query else (SET_SESSION, SET_LIMITS)


def make_engine(url: URL, *, pool_size: int, pool_timeout: float) -> Engine:
    """Make an engine for psycopg; connection settings in the URL's query override ours."""
    settings = {name: value for name, value in _CONNECT.items() if name not in url.query}
    engine = create_engine(
        url.set(drivername="postgresql+psycopg").update_query_dict(settings),
        isolation_level="READ COMMITTED",
        pool_size=pool_size,
        max_overflow=0,
        pool_use_lifo=True,  # the connection used last has its statements prepared
        pool_timeout=pool_timeout,
        pool_recycle=1800,
        hide_parameters=True,  # they may be tokens or descriptions, and errors are logged
    )
    event.listen(engine, "handle_error", _replace_error)
    event.listen(engine, "checkin", _note_return)
    event.listen(engine, "checkout", partial(_check_idle_connection, engine.dialect))
    event.listen(engine, "connect", partial(_prepare, url))
    return engine


def is_pooled(conn: Connection) -> bool:
    """Whether the connection goes through a pooler such as pgbouncer.

    Then the next transaction may use another session: LISTEN, session locks and settings are lost.
    """
    return bool(conn.info.get("pooled", False))


def takes_no_writes(error: BaseException | None) -> bool:
    """Whether the server answered that it takes no writes: a standby, or one that was made read-only."""
    code = getattr(error, "sqlstate", None)
    # Not by the message: it is in the language of the server.
    function = getattr(getattr(error, "diag", None), "source_function", None)
    return code == _READ_ONLY or (code == _NOT_SUPPORTED and function in _STANDBY_FUNCTIONS)


def translate_unavailable(error: DBAPIError) -> DBAPIError:
    """Make one class of errors of those about a server that is away, whatever the driver calls them.

    These are the ones of a server that takes no writes, and of one that ended the session: a role's
    idle_in_transaction_session_timeout after this process was suspended, for the driver an internal error.
    """
    if error.orig is None or isinstance(error, OperationalError | InterfaceError):
        return error
    if not (error.connection_invalidated or takes_no_writes(error.orig)):
        return error
    return OperationalError(
        error.statement,
        None,
        error.orig,
        hide_parameters=True,
        connection_invalidated=error.connection_invalidated,
    )


def _replace_error(context: ExceptionContext) -> DBAPIError | None:
    """The error to raise instead; None: the same."""
    error = context.sqlalchemy_exception
    replaced = translate_unavailable(error) if isinstance(error, DBAPIError) else error
    return replaced if isinstance(replaced, OperationalError) and replaced is not error else None


def _note_return(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info["returned"] = time.monotonic()


def _check_idle_connection(
    dialect: Dialect, connection: Any, entry: ConnectionPoolEntry, _proxy: Any
) -> None:
    # A restart of the server must not fail a request; the ping is a round trip.
    now = time.monotonic()
    if not requires_ping(connection, now - entry.info.get("returned", now)):
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise DisconnectionError("the server has closed this connection") from error


def requires_ping(connection: Any, idle: float) -> bool:
    """Whether a connection that was idle for so many seconds may have been closed by the server.

    One that was used a moment ago is good, unless the server sent data by itself: it closes the connection.
    """
    if idle >= IDLE_SECONDS or connection.closed:
        return True
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _prepare(url: URL, connection: Any, entry: ConnectionPoolEntry) -> None:
    [process] = _query(connection, READ_PROCESS)
    settings = begin_session(connection, process, url)
    entry.info["pooled"] = not settings
    for each in settings:
        _query(connection, each)


def _query(connection: Any, statement: str) -> Any:
    try:
        row = connection.execute(statement).fetchone()
        connection.commit()
    except BaseException:
        connection.close()  # not in use by anyone yet
        raise
    return row
