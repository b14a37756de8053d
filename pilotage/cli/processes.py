"""Several processes that do the same, kept alive by the one that started them."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import SpawnProcess

from pilotage.cli import stopping
from pilotage.cli.failures import Refused

#: A process that ends by itself sooner than this after its start will not fare better the next time. One
#: that was killed may: its end says nothing about our configuration.
_HOPELESS = 3.0  # seconds
_LOOK_EVERY = 0.5  # seconds


def keep_alive(target: Callable[[], None], count: int, *, ending: Callable[[], None] = lambda: None) -> None:
    """Run `count` processes until SIGINT or SIGTERM; one that dies is started again.

    They are spawned, not forked: each makes its own engine and threads. They end when this process does.

    Args:
        target: What each does until SIGTERM; it has to be picklable.
        count: How many.
        ending: Called when the end was asked for, before the processes are told.

    Raises:
        Refused: A process ended by itself right after its start.
    """
    context = multiprocessing.get_context("spawn")
    stop = stopping.on_signals()

    def start() -> tuple[SpawnProcess, float]:
        process = context.Process(target=_run, args=(target,))
        process.start()
        return process, time.monotonic()

    running = [start() for _ in range(count)]
    try:
        while not stop.wait(_LOOK_EVERY):
            running = [_checked(process, since) or start() for process, since in running]
    finally:
        ending()
        for process, _ in running:
            process.terminate()
        for process, _ in running:
            process.join()


def _checked(process: SpawnProcess, since: float) -> tuple[SpawnProcess, float] | None:
    """The process if it lives; None if it has to be started again."""
    if process.is_alive():
        return process, since
    killed = (process.exitcode or 0) < 0
    if not killed and time.monotonic() - since < _HOPELESS:
        raise Refused(f"a process ended right after its start, with status {process.exitcode}; see above")
    return None


def _run(target: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent tells us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
