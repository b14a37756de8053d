"""How far what a process remembers of the database may be trusted without a look."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds after a look in which its result may be told again. A job is to be offered within two seconds.
_GOOD = 1.0


@dataclass(frozen=True, slots=True)
class Begun:
    """A look at the feed that has begun."""

    at: float
    rings: int


class Freshness:
    """Good for a second after each look at the feed, and until somebody rings that there is news.

    A ring during a look may be for what the look does not see: after that one it is not good.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rings = 0
        self._until = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing new has been rung for, and the last look is no older than a second."""
        return self._clock() < self._until

    def begin(self) -> Begun:
        """A look begins: call it before the transaction reads anything."""
        return Begun(self._clock(), self._rings)

    def end(self, begun: Begun) -> None:
        """What that look saw is remembered now."""
        with self._lock:
            if begun.rings == self._rings:
                self._until = begun.at + _GOOD

    def ring(self) -> None:
        """There is something new; from any thread."""
        with self._lock:
            self._rings += 1
            self._until = 0.0
