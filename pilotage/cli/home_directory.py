"""The home directory of an installation, and the lock that keeps a second `pilotage up` out of it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.cli.failures import Refused

_LOCK = "up.lock"


def make(home: Path) -> None:
    """Make the directory, for its owner alone: it holds the key that signs tokens."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Be the only `pilotage up` in this home directory; the lock ends with the process, however it ends.

    Raises:
        Refused: Another one runs.
    """
    with (home / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"`pilotage up` runs already in {home}") from None
        yield
