"""Notifications between processes through PostgreSQL's LISTEN and NOTIFY.

NOTIFY is never part of a transaction that changes data, because transactions that notify commit one after
the other. NOTIFY works through a pooler; LISTEN belongs to a session and needs a direct connection.
"""

from threading import Event
from typing import Any, cast

import psycopg
from sqlalchemy import Connection, Engine, bindparam, func, make_url, select, true

from cs_config import notifications
from taskqueue.db import database, postgresql
from taskqueue.db.notify import Listener, TransportDownError

#: Seconds between two tests of the stop event.
_POLL_SECONDS = 0.2

POSTGRESQL_CHANNEL = "pilotage_rings"
#: Without waiting for the disk: a notification need not be durable.
NOTIFY = select(
    func.set_config("synchronous_commit", "off", true()),
    func.pg_notify(POSTGRESQL_CHANNEL, bindparam("topic")),
)
LISTEN = f"LISTEN {POSTGRESQL_CHANNEL}"


class PostgresqlTransport:
    """Sends over the engine of the process, listens over a connection of its own."""

    def __init__(self, engine: Engine, direct_url: str) -> None:
        """`direct_url` is the same database without a pooler."""
        self._engine = engine
        self._direct_url = direct_url

    def send(self, topics: frozenset[str]) -> None:
        """Send to all listeners; TransportDownError if the database is away."""
        try:
            with self._engine.begin() as conn:
                for topic in sorted(topics):
                    conn.execute(NOTIFY, {"topic": topic})
        except database.UNAVAILABLE as error:
            raise TransportDownError(_format_error(error)) from error

    def listen(self, heard: Listener, stop: Event) -> None:
        """Listen until `stop` is set; TransportDownError if the connection is lost or pooled."""
        engine = postgresql.make_engine(make_url(self._direct_url), pool_size=1, pool_timeout=10)
        try:
            with engine.connect() as conn:
                _listen(conn.execution_options(isolation_level="AUTOCOMMIT"), heard, stop)
        except (*database.UNAVAILABLE, psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise TransportDownError(_format_error(error)) from error
        finally:
            engine.dispose()


def _listen(conn: Connection, heard: Listener, stop: Event) -> None:
    if postgresql.is_pooled(conn):
        raise TransportDownError("LISTEN needs a connection without pgbouncer: set database_direct_url")
    conn.exec_driver_sql(LISTEN)
    heard(notifications.TOPICS)
    connection = cast("psycopg.Connection[Any]", conn.connection.driver_connection)
    while not stop.is_set():
        for note in connection.notifies(timeout=_POLL_SECONDS):
            heard(frozenset({note.payload}))


def _format_error(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
