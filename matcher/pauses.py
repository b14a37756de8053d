"""Long work beside requests: the interpreter does one thing at a time, so it is done with pauses."""

import threading
import time
from typing import Final

#: Seconds of processor time after which a pause is due.
_PIECE: Final = 0.005
#: Share of a core that the work takes.
_SHARE: Final = 0.1
#: Seconds after which the rest is done without pauses: accounting reads what is stored two minutes later.
_LONGEST: Final = 20.0


class Pauses:
    """Called after each small step by its own thread, waits so that the work takes a share of a core.

    Without it, what a process stores each minute of a thousand sites delays all requests by seconds.
    """

    def __init__(self, ending: threading.Event) -> None:
        """Begin; there are no pauses after twenty seconds, nor after `ending`, which ends one under way."""
        self._ending = ending
        self._until = time.monotonic() + _LONGEST
        self._since = time.thread_time()

    def __call__(self) -> None:
        """Wait if a piece of work was done since the last pause."""
        used = time.thread_time() - self._since
        if used >= _PIECE:
            left = self._until - time.monotonic()
            self._ending.wait(max(0.0, min(used * (1 / _SHARE - 1), left)))
            self._since = time.thread_time()


def no_pause() -> None:
    """Work that nobody waits beside."""
