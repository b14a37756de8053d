"""Long evaluations take turns: one at a time in a process.

HTCondor's library holds Python's interpreter while it evaluates. Of several threads that do so, each gets the
interpreter as often as the event loop does, and the loop would wait for all of them in turn. Threads that
wait here do not ask for the interpreter: the loop waits for one evaluation at most.
"""

import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Final

#: Work, in the units of `work`, of an evaluation that takes turns: a millisecond.
LONG: Final = 10_000_000


class _Turns:
    """A lock that goes to who has waited longest; Python's own may go to the same thread again and again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until it is handed on

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


_TURNS: Final = _Turns()
_AT_ONCE: Final = nullcontext()


def take(units: int) -> AbstractContextManager[None]:
    """Wait for a turn, if so much work is long."""
    return _TURNS if units > LONG else _AT_ONCE
