"""The bell of one process: rings for the others, and answers when they ring.

Rings are coalesced: whatever is committed while one is under way goes with the next. A bell promises
nothing. Who answers polls as well, so a ring that gets lost costs the time until the next poll.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from threading import Event, Lock, Thread

from cs_config import rings
from taskqueue.bells.wire import Wire, WireDownError

log = logging.getLogger(__name__)

#: Seconds between two rings of one process.
_PAUSE = 0.05
#: Seconds until the next try after the wire was down; doubled each time up to the longest.
_FIRST, _LONGEST = 0.1, 5.0
#: Seconds that threads get to end.
_GRACE = 10.0


class Bell:
    """Safe in several threads; `start` it after a fork, `stop` it before the end."""

    def __init__(self, wire: Wire | None, *, pause: float = _PAUSE) -> None:
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

    def answer(self, topic: str, do: Callable[[], object]) -> None:
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

    def ring(self, topics: frozenset[str]) -> None:
        """Tell this process at once, the others in a moment; neither waits nor fails."""
        self._heard(topics)
        with self._turn:
            self._pending |= topics
        self._rung.set()

    def _heard(self, topics: frozenset[str]) -> None:
        for topic in topics & rings.TOPICS:
            for do in self._answers[topic]:
                do()

    def _send(self, wire: Wire) -> None:
        patience = Patience()
        while self._rung.wait() and not self._stopping.is_set():
            self._rung.clear()
            with self._turn:
                topics, self._pending = frozenset(self._pending), set()
            try:
                wire.send(topics)
            except WireDownError as error:
                patience.tell("others see changes at their next poll, ringing for them failed", error)
                self._stopping.wait(patience.next())
            else:
                patience.renew()
                self._stopping.wait(self._pause)

    def _listen(self, wire: Wire) -> None:
        patience = Patience()

        def heard(topics: frozenset[str]) -> None:
            patience.renew()
            self._heard(topics)

        while not self._stopping.is_set():
            try:
                wire.listen(heard, self._stopping)
            except WireDownError as error:
                patience.tell("changes are seen at the next poll, nobody can ring for us", error)
                self._stopping.wait(patience.next())


class Patience:
    """How long to wait after a failure, and how often to speak of it: once, until it works again."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._told = False

    def renew(self) -> None:
        """It works."""
        self._next, self._told = _FIRST, False

    def next(self) -> float:
        """Seconds until the next try."""
        now, self._next = self._next, min(2 * self._next, _LONGEST)
        return now

    def tell(self, what: str, error: WireDownError) -> None:
        """Log a failure, unless it is the same one still."""
        if not self._told:
            log.warning("%s: %s", what, error)
        self._told = True


def quietly(wire: Wire) -> Callable[[frozenset[str]], None]:
    """Ring in the thread that commits, for processes too short-lived for a bell; a failure is logged."""

    def ring(topics: frozenset[str]) -> None:
        try:
            wire.send(topics)
        except WireDownError as error:
            log.warning("others see changes at their next poll, ringing for them failed: %s", error)

    return ring
