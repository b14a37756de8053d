"""Notifications between processes: topics published after a commit, so that followers refresh at once.

Notifications are coalesced: what is committed while one is being sent goes with the next. Delivery is not
guaranteed. Followers poll as well, so a lost notification costs the time until the next poll.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Protocol

from cs_config import notifications

#: Is told the topics that were rung for.
Listener = Callable[[frozenset[str]], None]


class TransportDownError(Exception):
    """Nothing gets through at the moment; whoever follows polls meanwhile."""


class NotificationTransport(Protocol):
    """What carries rings; one that is lost on its way does no harm."""

    def send(self, topics: frozenset[str]) -> None:
        """Tell all who listen now, this process among them.

        Raises:
            WireDownError: It did not get through.
        """

    def listen(self, heard: Listener, stop: Event) -> None:
        """Listen until told to stop; every topic is heard once at the beginning, for what was missed.

        Raises:
            WireDownError: The connection was lost, or never came about.
        """


log = logging.getLogger(__name__)

#: Seconds between two rings of one process.
_PAUSE = 0.05
#: Seconds until the next try after the wire was down; doubled each time up to the longest.
_FIRST, _LONGEST = 0.1, 5.0
#: Seconds that threads get to end.
_GRACE = 10.0


class NotificationHub:
    """Safe in several threads; `start` it after a fork, `stop` it before the end."""

    def __init__(self, wire: NotificationTransport | None, *, pause: float = _PAUSE) -> None:
        """Make it.

        Args:
            wire: To the other processes; None: there are none.
            pause: Seconds between two rings.
        """
        self._pause = pause
        self._answers: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._pending: set[str] = set()
        self._turn = Lock()
        self._rung = Event()
        self._stopping = Event()
        self._threads = (
            []
            if wire is None
            else [
                Thread(target=self._send, args=(wire,), name="bell", daemon=True),
                Thread(target=self._listen, args=(wire,), name="bell-answers", daemon=True),
            ]
        )

    def subscribe(self, topic: str, do: Callable[[], object]) -> None:
        """Have something done whenever it is rung for a topic; it must not wait."""
        self._answers[topic].append(do)

    def start(self) -> None:
        """Begin to listen."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ring no more, and answer no more."""
        self._stopping.set()
        self._rung.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_GRACE)

    def publish(self, topics: frozenset[str]) -> None:
        """Tell this process at once, the others in a moment; neither waits nor fails."""
        self._dispatch(topics)
        with self._turn:
            self._pending |= topics
        self._rung.set()

    def _dispatch(self, topics: frozenset[str]) -> None:
        for topic in topics & notifications.TOPICS:
            for do in self._answers[topic]:
                do()

    def _send(self, wire: NotificationTransport) -> None:
        patience = RetryDelay()
        while self._rung.wait() and not self._stopping.is_set():
            self._rung.clear()
            with self._turn:
                topics, self._pending = frozenset(self._pending), set()
            try:
                wire.send(topics)
            except TransportDownError as error:
                patience.log_failure("others see changes at their next poll, ringing for them failed", error)
                self._stopping.wait(patience.next())
            else:
                patience.reset()
                self._stopping.wait(self._pause)

    def _listen(self, wire: NotificationTransport) -> None:
        patience = RetryDelay()

        def heard(topics: frozenset[str]) -> None:
            patience.reset()
            self._dispatch(topics)

        while not self._stopping.is_set():
            try:
                wire.listen(heard, self._stopping)
            except TransportDownError as error:
                patience.log_failure("changes are seen at the next poll, nobody can ring for us", error)
                self._stopping.wait(patience.next())


class RetryDelay:
    """How long to wait after a failure, and how often to speak of it: once, until it works again."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._told = False

    def reset(self) -> None:
        """It works."""
        self._next, self._told = _FIRST, False

    def next(self) -> float:
        """Seconds until the next try."""
        now, self._next = self._next, min(2 * self._next, _LONGEST)
        return now

    def log_failure(self, what: str, error: TransportDownError) -> None:
        """Log a failure, unless it is the same one still."""
        if not self._told:
            log.warning("%s: %s", what, error)
        self._told = True


def make_publisher(wire: NotificationTransport) -> Callable[[frozenset[str]], None]:
    """Ring in the thread that commits, for processes too short-lived for a bell; a failure is logged."""

    def ring(topics: frozenset[str]) -> None:
        try:
            wire.send(topics)
        except TransportDownError as error:
            log.warning("others see changes at their next poll, ringing for them failed: %s", error)

    return ring
