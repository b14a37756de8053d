"""`client.env` in the home directory: how commands on this machine reach the service of `pilotage up`."""

import shlex
from pathlib import Path

from pilotage.fabric import private_file

FILE = "client.env"


def variables(*, url: str, token: str, authorities: Path | None = None) -> dict[str, str]:
    """What tells a command where the service is, who we are, and whom to believe that it is the service."""
    told = {"PILOTAGE_URL": url, "PILOTAGE_TOKEN": token}
    return told if authorities is None else {**told, "PILOTAGE_AUTHORITIES": str(authorities.absolute())}


def write(home: Path, *, url: str, token: str, authorities: Path | None = None) -> Path:
    """Write them, readable by their owner alone; a shell may source the file."""
    path = home / FILE
    told = variables(url=url, token=token, authorities=authorities)
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in told.items())
    private_file.write(path, text)
    return path


def read(home: Path) -> dict[str, str]:
    """The variables of the file; empty if there is none."""
    try:
        text = (home / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): "".join(shlex.split(value)) for name, _, value in pairs}


def remove(home: Path) -> None:
    """Remove the file: nobody is to take an old service for the new one."""
    (home / FILE).unlink(missing_ok=True)
