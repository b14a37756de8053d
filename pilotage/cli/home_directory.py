"""The home directory of an installation: making it, knowing it, and keeping a second `up` out of it.

`client.env` in the home directory: how commands on this machine reach the service of `pilotage up`.
"""

import fcntl
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.cli.errors import CommandRefused
from pilotage.fabric import private_file

_LOCK = "up.lock"


def make_home(home: Path) -> None:
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
    raise CommandRefused(
        f"{home}: no installation was made here (no {key.name}); `pilotage up`, `serve` and `db upgrade` "
        "make one, --home or PILOTAGE_HOME names another"
    )


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Be the only `pilotage up` in this home directory; the lock ends with the process, however it ends.

    Raises:
        Refused: Another one runs.
    """
    with (home / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandRefused(f"`pilotage up` runs already in {home}") from None
        yield


CLIENT_ENV = "client.env"


def client_variables(*, url: str, token: str, authorities: Path | None = None) -> dict[str, str]:
    """What tells a command where the service is, who we are, and whom to believe that it is the service."""
    told = {"PILOTAGE_URL": url, "PILOTAGE_TOKEN": token}
    return told if authorities is None else {**told, "PILOTAGE_AUTHORITIES": str(authorities.absolute())}


def write_client_env(home: Path, *, url: str, token: str, authorities: Path | None = None) -> Path:
    """Write them, readable by their owner alone; a shell may source the file."""
    path = home / CLIENT_ENV
    told = client_variables(url=url, token=token, authorities=authorities)
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in told.items())
    private_file.write(path, text)
    return path


def read_client_env(home: Path) -> dict[str, str]:
    """The variables of the file; empty if there is none."""
    try:
        text = (home / CLIENT_ENV).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): "".join(shlex.split(value)) for name, _, value in pairs}


def remove_client_env(home: Path) -> None:
    """Remove the file: nobody is to take an old service for the new one."""
    (home / CLIENT_ENV).unlink(missing_ok=True)
