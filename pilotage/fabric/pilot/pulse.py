"""Doing something again and again in a thread of its own, until told to stop."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Callable


class Pulse:
    """Takes turns from the beginning of a `with` block to its end."""

    def __init__(self, turn: Callable[[], float | None], *, name: str, first: float | None = 0.0) -> None:
        """Make it.

        Args:
            turn: Does what is to be done now; says the seconds until the next turn, None: there is none.
            name: Of the thread.
            first: Seconds until the first turn; None: there is none.
        """
        self._turn = turn
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Pulse:  # noqa: PYI034 - Self is of Python 3.11
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._first
        while pause is not None and not self._stop.wait(pause):
            pause = self._turn()
