"""Notifications between processes: topics published after a commit, so that followers refresh at once.

Notifications are coalesced: topics published while one is being sent are sent with the next. Delivery is not
guaranteed. Followers poll as well, so a lost notification only costs the time until the next poll.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol, cast

from sqlalchemy import Connection, Engine, bindparam, func, make_url, select, true

from cs_config import notifications
from taskqueue.db import database, redis_servers

if TYPE_CHECKING:
    import psycopg

#: Called with the published topics.
Listener = Callable[[frozenset[str]], None]


class TransportDownError(Exception):
    """The transport is down; followers poll meanwhile."""


class NotificationTransport(Protocol):
    """Carries notifications; a lost one does no harm. Both methods raise TransportDownError."""

    def send(self, topics: frozenset[str]) -> None:
        """Send to all listeners, this process included."""

    def listen(self, heard: Listener, stop: Event) -> None:
        """Listen until `stop` is set; calls `heard` with all topics first, for missed notifications."""


log = logging.getLogger(__name__)

#: Seconds between two notifications of one process.
_PAUSE = 0.05
#: First and longest delay in seconds before a retry; doubled each time.
_FIRST, _LONGEST = 0.1, 5.0
#: Seconds to wait for the threads at the end.
_GRACE = 10.0


class NotificationHub:
    """Publishes and receives notifications of a process; `start` it after a fork. Thread-safe."""

    def __init__(self, wire: NotificationTransport | None) -> None:
        """`wire` None: there are no other processes."""
        self._subscribers: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._pending: set[str] = set()
        self._lock = Lock()
        self._published = Event()
        self._stopping = Event()
        self._threads = (
            []
            if wire is None
            else [
                Thread(target=self._send, args=(wire,), name="notify-send", daemon=True),
                Thread(target=self._listen, args=(wire,), name="notify-listen", daemon=True),
            ]
        )

    def subscribe(self, topic: str, do: Callable[[], object]) -> None:
        """Call `do` whenever the topic is published; it must not block."""
        self._subscribers[topic].append(do)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending and receiving."""
        self._stopping.set()
        self._published.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_GRACE)

    def publish(self, topics: frozenset[str]) -> None:
        """Notify this process at once and the others soon; neither blocks nor raises."""
        self._dispatch(topics)
        with self._lock:
            self._pending |= topics
        self._published.set()

    def _dispatch(self, topics: frozenset[str]) -> None:
        for topic in topics & notifications.TOPICS:
            for do in tuple(self._subscribers[topic]):  # another thread may subscribe meanwhile
                do()

    def _send(self, wire: NotificationTransport) -> None:
        delay = RetryDelay()
        while self._published.wait() and not self._stopping.is_set():
            self._published.clear()
            with self._lock:
                topics, self._pending = frozenset(self._pending), set()
            try:
                wire.send(topics)
            except TransportDownError as error:
                delay.log_failure("sending a notification failed, other processes poll for changes", error)
                self._stopping.wait(delay.next())
            else:
                delay.reset()
                self._stopping.wait(_PAUSE)

    def _listen(self, wire: NotificationTransport) -> None:
        delay = RetryDelay()

        def heard(topics: frozenset[str]) -> None:
            delay.reset()
            self._dispatch(topics)

        while not self._stopping.is_set():
            try:
                wire.listen(heard, self._stopping)
            except TransportDownError as error:
                delay.log_failure("receiving notifications failed, polling for changes", error)
                self._stopping.wait(delay.next())


class RetryDelay:
    """Exponential delay after failures; logs only the first one until the next success."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._is_logged = False

    def reset(self) -> None:
        """Start over after a success."""
        self._next, self._is_logged = _FIRST, False

    def next(self) -> float:
        """Seconds until the next attempt."""
        now, self._next = self._next, min(2 * self._next, _LONGEST)
        return now

    def log_failure(self, what: str, error: TransportDownError) -> None:
        """Log a failure, unless the previous attempt failed too."""
        if not self._is_logged:
            log.warning("%s: %s", what, error)
        self._is_logged = True


def make_publisher(wire: NotificationTransport) -> Callable[[frozenset[str]], None]:
    """A notifier that sends in the committing thread, for short-lived processes; failures are logged."""

    def publish(topics: frozenset[str]) -> None:
        try:
            wire.send(topics)
        except TransportDownError as error:
            log.warning("sending a notification failed, other processes poll for changes: %s", error)

    return publish


#: Seconds between two tests of the stop event.
_POLL_SECONDS = 0.2
#: A channel, not a key; each message is a topic of `cs_config.notifications`.
REDIS_CHANNEL = "pilotage:rings"
#: Timeout of Redis in seconds.
_TIMEOUT = 1.0
#: Seconds of silence after which a listener pings Redis.
_SILENCE = 5


class RedisTransport:
    """Redis' publish and subscribe; nothing is stored there. Safe in several threads and after a fork.

    Methods raise TransportDownError if Redis is away.
    """

    def __init__(self, redis_url: str) -> None:
        from redis.exceptions import RedisError  # optional package

        self._away = RedisError
        self._redis = redis_servers.connect(redis_url, timeout=_TIMEOUT, health_check_interval=_SILENCE)

    def send(self, topics: frozenset[str]) -> None:
        """Send to all listeners."""
        try:
            for topic in sorted(topics):
                self._redis.publish(REDIS_CHANNEL, topic)
        except self._away as error:
            raise TransportDownError(f"Redis: {error}") from error

    def listen(self, heard: Listener, stop: Event) -> None:
        """Listen until `stop` is set."""
        try:
            with self._redis.pubsub() as subscription:  # type: ignore[no-untyped-call]
                subscription.subscribe(REDIS_CHANNEL)
                while not stop.is_set():
                    message = subscription.get_message(timeout=_POLL_SECONDS)
                    if message is None:
                        continue
                    # The subscription is confirmed first: earlier notifications were missed.
                    is_topic = message["type"] == "message"
                    heard(frozenset({message["data"].decode()}) if is_topic else notifications.TOPICS)
        except self._away as error:
            raise TransportDownError(f"Redis: {error}") from error


POSTGRESQL_CHANNEL = "pilotage_rings"
#: Without waiting for the disk: a notification need not be durable.
NOTIFY = select(
    func.set_config("synchronous_commit", "off", true()),
    func.pg_notify(POSTGRESQL_CHANNEL, bindparam("topic")),
)
LISTEN = f"LISTEN {POSTGRESQL_CHANNEL}"


class PostgresqlTransport:
    """PostgreSQL's NOTIFY over the engine of the process, and LISTEN over a connection of its own.

    NOTIFY is never part of a transaction that changes data, because transactions that notify commit one after
    the other. NOTIFY works through a pooler; LISTEN belongs to a session and needs a direct connection.
    """

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
        import psycopg  # optional package

        from taskqueue.db import postgresql

        engine = postgresql.make_engine(make_url(self._direct_url), pool_size=1, pool_timeout=10)
        try:
            with engine.connect() as conn:
                _listen(conn.execution_options(isolation_level="AUTOCOMMIT"), heard, stop)
        except (*database.UNAVAILABLE, psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise TransportDownError(_format_error(error)) from error
        finally:
            engine.dispose()


def _listen(conn: Connection, heard: Listener, stop: Event) -> None:
    from taskqueue.db import postgresql

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
