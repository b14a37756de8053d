"""Notifications between processes: topics published after a commit, so that followers refresh at once.

Notifications are coalesced: topics published while one is being sent are sent with the next. Delivery is not
guaranteed. Followers poll as well, so a lost notification only costs the time until the next poll.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Protocol

from cs_config import notifications

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

    def __init__(self, wire: NotificationTransport | None, *, pause: float = _PAUSE) -> None:
        """`wire` None: there are no other processes; `pause` is in seconds."""
        self._pause = pause
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
            for do in self._subscribers[topic]:
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
                self._stopping.wait(self._pause)

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
