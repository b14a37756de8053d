"""What the pilot is told while it runs: by signals, or by a file."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

#: End now, hand back what runs; end when what runs has finished. Grid Engine sends USR2 before it kills.
_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR2}
_DRAIN = {signal.SIGUSR1}


class Orders:
    """Orders that came; none is ever taken back, but the file may go again."""

    def __init__(self, drain_file: Path | None = None) -> None:
        """Make it; while the file is there, the pilot drains."""
        self.stop = threading.Event()  #: end now
        self._drain = threading.Event()
        self._drain_file = drain_file
        self._woken = threading.Event()

    @property
    def drain(self) -> bool:
        """Whether to take no new work, and to end when what runs has finished."""
        return self._drain.is_set() or (self._drain_file is not None and self._drain_file.exists())

    def wake(self) -> None:
        """End the pause that somebody makes, or the next one."""
        self._woken.set()

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until something has happened."""
        self._woken.wait(seconds)
        self._woken.clear()

    def listen(self) -> None:
        """Take orders from signals, from now on.

        A thread waits for them, since a handler would run in the middle of anything: an event that is just
        being waited for cannot be set from there.
        """
        asked = _STOP | _DRAIN
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            asked = asked | {signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        threading.Thread(target=self._obey, args=(asked,), name="signals", daemon=True).start()

    def _obey(self, asked: set[signal.Signals]) -> None:
        while not self.stop.is_set():
            (self._drain if signal.sigwait(asked) in _DRAIN else self.stop).set()
            self.wake()
