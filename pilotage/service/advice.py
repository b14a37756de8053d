"""Advice in the answer to a request that has stored something: it may be missing, the answer may not."""

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from taskqueue.db import database

_log = logging.getLogger(__name__)


class Advisor:
    """Computes advice in a thread, one at a time, for a limited time; thread-safe."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds  #: that an answer waits for its advice
        self._turn = threading.Lock()

    def find(self, what: str, compute: Callable[[], Sequence[str]]) -> list[str]:
        """The advice; none if it cannot be computed, or not in time."""
        found: SimpleQueue[Sequence[str]] = SimpleQueue()

        def run() -> None:
            try:
                with database.after_commit(what):
                    found.put(compute())
            finally:
                found.put(())
                self._turn.release()

        if self._turn.acquire(timeout=self._seconds):
            threading.Thread(target=run, name="advice", daemon=True).start()
            try:
                return list(found.get(timeout=self._seconds))
            except Empty:
                pass
        _log.warning("%s: not within %g seconds, the answer goes without it", what, self._seconds)
        return []
