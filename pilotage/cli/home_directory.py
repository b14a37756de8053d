"""The home directory of an installation, its lock against a second `up`, and its file `client.env`.

Commands on this machine read from `client.env` where the service of `pilotage up` is, and their token.
"""

import fcntl
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.cli.errors import CommandRefused
from pilotage.fabric.pilot import job_files

_LOCK = "up.lock"


def make_home(home: Path) -> None:
    """Create the directory, private to its owner: it holds the signing key."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)


def require_installation(home: Path, key: Path) -> None:
    """Reject a mistyped home directory: no service would accept tokens signed there.

    An empty directory passes, as one prepared for a new installation.

    Raises:
        CommandRefused: The directory has no installation.
    """
    if key.exists() or (home.is_dir() and not any(home.iterdir())):
        return
    raise CommandRefused(
        f"{home}: no installation was made here (no {key.name}); `pilotage up`, `serve` and `db upgrade` "
        "make one, --home or PILOTAGE_HOME names another"
    )


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Hold the lock of `pilotage up` in this home directory; the kernel releases it with the process.

    Raises:
        CommandRefused: Another process holds the lock.
    """
    with (home / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandRefused(f"`pilotage up` runs already in {home}") from None
        yield


CLIENT_ENV = "client.env"


def client_variables(*, url: str, token: str, authorities: Path | None = None) -> dict[str, str]:
    """The variables with URL, token and CA certificates of the service."""
    variables = {"PILOTAGE_URL": url, "PILOTAGE_TOKEN": token}
    return (
        variables
        if authorities is None
        else {**variables, "PILOTAGE_AUTHORITIES": str(authorities.absolute())}
    )


def write_client_env(home: Path, *, url: str, token: str, authorities: Path | None = None) -> Path:
    """Write `client.env`, readable only by its owner; a shell can source it."""
    path = home / CLIENT_ENV
    variables = client_variables(url=url, token=token, authorities=authorities)
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    job_files.write(str(home), CLIENT_ENV, text.encode())
    return path


def read_client_env(home: Path) -> dict[str, str]:
    """The variables in `client.env`; empty without the file."""
    try:
        text = (home / CLIENT_ENV).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): "".join(shlex.split(value)) for name, _, value in pairs}


def remove_client_env(home: Path) -> None:
    """Remove `client.env`, so that no command connects to the previous service."""
    (home / CLIENT_ENV).unlink(missing_ok=True)
