"""The lock of a home directory against a second `up`.

Its file has the settings with which `up` runs: its flags and variables are not those of other commands.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pilotage.client.errors import CommandRefused

_LOCK = "up.lock"


@contextmanager
def lock_home(home: Path, running: Mapping[str, str] = {}) -> Iterator[None]:
    """Hold the lock of `pilotage up` in this home directory; the kernel releases it with the process.

    `running` has settings for `read_running` by name; URLs may have passwords.
    """
    with (home / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandRefused(f"`pilotage up` runs already in {home}") from None
        os.fchmod(lock.fileno(), 0o600)
        lock.truncate(0)
        lock.write(json.dumps(dict(running)))
        lock.flush()
        yield
        lock.truncate(0)


def read_running(home: Path) -> Mapping[str, str]:
    """The settings of the `pilotage up` that runs in this home directory; empty: none does."""
    try:
        with (home / _LOCK).open() as lock:
            content = lock.read()
            if not content or _is_free(lock.fileno()):
                return {}
    except OSError:  # there is none, or it is another user's
        return {}
    found: Mapping[str, str] = json.loads(content)
    return found


def _is_free(lock: int) -> bool:
    """Whether nobody holds the lock: its process was killed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
