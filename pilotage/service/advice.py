"""Advice in the answer to a request that has stored something: it may be missing, the answer may not."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue

from taskqueue.db import database

_log = logging.getLogger(__name__)
#: Seconds that an answer waits for the advice before it; one that hangs keeps only its own answer waiting.
_TURN = 0.2


class Advisor:
    """Computes advice in a thread, one at a time, for a limited time; thread-safe."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds  #: that an answer waits for its advice
        self._turn = threading.Lock()  #: of the one that is computed

    def find(self, what: str, compute: Callable[[], Sequence[str]]) -> list[str]:
        """The advice; none if it cannot be computed, or not in time."""
        found: SimpleQueue[Sequence[str]] = SimpleQueue()

        def run() -> None:
            advice: Sequence[str] = ()
            try:
                with database.after_commit(what):
                    advice = compute()
            finally:
                turn.release()  # before the answer goes: the next one may come at once
                found.put(advice)

        turn = self._turn
        if turn.acquire(timeout=_TURN):
            try:
                # In the context of the request, so that what it computes counts for its caller.
                threading.Thread(target=copy_context().run, args=[run], name="advice", daemon=True).start()
            except RuntimeError:  # no more threads
                turn.release()
                _log.exception("%s: the answer goes without it", what)
                return []
            try:
                return list(found.get(timeout=self._seconds))
            except Empty:
                self._turn = threading.Lock()  # that of the one which hangs may never be released
        _log.warning("%s: not within %g seconds, the answer goes without it", what, self._seconds)
        return []
