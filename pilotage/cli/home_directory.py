"""The home directory of an installation, and what it writes for clients."""

import shlex
from pathlib import Path

from pilotage.client.connection import CLIENT_ENV, client_variables
from pilotage.client.errors import CommandRefused
from pilotage.fabric.pilot import job_files


def make_home(home: Path) -> None:
    """Create the directory, private to its owner: it holds the signing key."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)


def require_installation(home: Path, key: Path) -> None:
    """Reject a mistyped home directory: no service would accept tokens signed there.

    An empty directory passes, as one prepared for a new installation.
    """
    if key.exists() or (home.is_dir() and not any(home.iterdir())):
        return
    raise CommandRefused(
        f"{home}: no installation was made here (no {key.name}); `pilotage up`, `serve` and `db upgrade` "
        "make one, --home or PILOTAGE_HOME names another"
    )


def write_client_env(
    home: Path, *, url: str, token: str, authorities: Path | None = None, proxy: str | None = None
) -> Path:
    """Write `client.env`, readable only by its owner; a shell can source it."""
    path = home / CLIENT_ENV
    variables = client_variables(url=url, token=token, authorities=authorities, proxy=proxy)
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    job_files.write(str(home), CLIENT_ENV, text.encode())
    return path


def remove_client_env(home: Path) -> None:
    """Remove `client.env`, so that no command connects to the previous service."""
    (home / CLIENT_ENV).unlink(missing_ok=True)
