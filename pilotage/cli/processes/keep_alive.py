"""Several processes that do the same, kept alive by the one that started them."""

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

from pilotage.cli import process_setup
from pilotage.cli.errors import CommandRefused

_log = logging.getLogger(__name__)

#: Seconds after which a process that lives has proven that it can.
_PROVEN = 30.0
#: Seconds before the second try after a start that failed; twice as long before each that follows.
_FIRST_REST = 1.0
_LONGEST_REST = 60.0
_LOOK_EVERY = 0.5  # seconds


def keep_alive(target: Callable[[], None], count: int, *, ending: Callable[[], None] = lambda: None) -> None:
    """Run `count` processes until SIGINT or SIGTERM; one that dies is started again.

    They are spawned, not forked: each makes its own engine and threads. They end when this process does.

    Args:
        target: What each does until SIGTERM; it has to be picklable.
        count: How many.
        ending: Called when the end was asked for, before the processes are told.

    Raises:
        Refused: One of the first ended by itself before it had proven that it can live.
    """
    context = multiprocessing.get_context("spawn")
    stop = process_setup.stop_on_signals()

    def start() -> ChildProcess:
        process = context.Process(target=_run, args=(target,))
        process.start()
        return process

    places = [ProcessSlot(start, now=time.monotonic()) for _ in range(count)]
    try:
        while not stop.wait(_LOOK_EVERY):
            for place in places:
                place.look(now=time.monotonic())
    finally:
        ending()
        for place in places:
            place.child.terminate()
        for place in places:
            place.child.join()


class ChildProcess(Protocol):
    """A process, as far as it is kept alive."""

    @property
    def exitcode(self) -> int | None:
        """None while it lives; below zero: the signal that ended it."""

    def terminate(self) -> None:
        """Ask it to end."""

    def join(self) -> None:
        """Wait until it has."""


class ProcessSlot:
    """One of the processes, and those that stood in for it before.

    One that ends soon after its start may do so each time: the next one rests first, longer each time.
    Where that was the very first, and nobody killed it, the configuration is to blame, and somebody waits
    to hear so.
    """

    def __init__(self, start: Callable[[], ChildProcess], *, now: float) -> None:
        """Start the first.

        Args:
            start: A process.
            now: Seconds of a clock that never goes back.
        """
        self._start = start
        self._since = now
        self._until: float | None = None  # when it ended and rests, if it does
        self._is_first = True
        self._failed = 0  # in a row
        self.child = start()

    def look(self, *, now: float) -> None:
        """Start it again where it has ended and rested.

        Raises:
            Refused: It is the first, and ended by itself before it had proven that it can live.
        """
        if self._until is None and (status := self.child.exitcode) is not None:
            self._until = now + self._rest(status, lived=now - self._since)
        if self._until is not None and now >= self._until:
            self.child, self._since, self._until, self._is_first = self._start(), now, None, False

    def _rest(self, status: int, *, lived: float) -> float:
        """Seconds until the next one starts."""
        said = f"a process ended {lived:.0f} s after its start, with status {status}"
        failed = lived < _PROVEN
        if failed and self._is_first and status >= 0:
            raise CommandRefused(f"{said}; see above")
        self._failed = self._failed + 1 if failed else 0
        rest = min(_FIRST_REST * 2 ** min(self._failed - 2, 10), _LONGEST_REST) if self._failed > 1 else 0.0
        _log.error("%s; it is started again in %.0f s", said, rest)
        return rest


def _run(target: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent tells us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
