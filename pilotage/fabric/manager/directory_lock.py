"""The lock of a manager's directory: one manager at a time."""

import fcntl
import time
from pathlib import Path
from typing import TextIO

from pilotage.fabric.manager.errors import StateUnusable

#: Seconds that a lock which another process has is waited for: what a killed manager was just starting has
#: it, too, until it becomes another program.
_PATIENCE = 5.0
_PAUSE = 0.05


def hold(directory: Path) -> TextIO:
    """The lock, made with the directory where there is none; held until it is closed.

    Raises:
        StateUnusable: The directory cannot be used, or another manager has it open.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise StateUnusable(f"{directory}: {error.strerror}") from error
    try:
        _lock(lock)
    except OSError as error:
        lock.close()
        why = "another manager has it open" if isinstance(error, BlockingIOError) else error.strerror
        raise StateUnusable(f"{directory}: {why}") from None
    return lock


def _lock(lock: TextIO) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
