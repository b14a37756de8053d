"""Long work beside requests: the interpreter does one thing at a time, so it is done with pauses."""

import threading
import time
from typing import Final

#: Seconds of processor time after which a pause is due.
_PIECE: Final = 0.005
#: Share of a core that the work takes.
_SHARE: Final = 0.1


class Pauses:
    """Called after each small step by its own thread, waits so that the work takes a share of a core.

    Without it, what a process stores each minute of a thousand sites delays all requests by seconds.
    """

    def __init__(self, ending: threading.Event) -> None:
        """Begin; there are no pauses after `ending`, and one that is under way ends with it."""
        self._ending = ending
        self._since = time.thread_time()

    def __call__(self) -> None:
        """Wait if a piece of work was done since the last pause."""
        used = time.thread_time() - self._since
        if used >= _PIECE:
            self._ending.wait(used * (1 / _SHARE - 1))
            self._since = time.thread_time()


def no_pause() -> None:
    """Work that nobody waits beside."""
