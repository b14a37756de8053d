"""The home directory of an installation: making it, knowing it, and keeping a second `up` out of it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.cli.failures import Refused

_LOCK = "up.lock"


def make(home: Path) -> None:
    """Make the directory, for its owner alone: it holds the key that signs tokens."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)


def require_installation(home: Path, key: Path) -> None:
    """Let nobody sign tokens for a mistyped home, which no service would ever accept.

    An empty directory is one that somebody made for a new installation.

    Args:
        home: The home directory.
        key: The signing key, which the start of an installation makes.

    Raises:
        Refused: No installation was made in this home directory.
    """
    if key.exists() or (home.is_dir() and not any(home.iterdir())):
        return
    raise Refused(
        f"{home}: no installation was made here (no {key.name}); `pilotage up`, `serve` and `db upgrade` "
        "make one, --home or PILOTAGE_HOME names another"
    )


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
