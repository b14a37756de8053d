"""What the jobs of local pilots are kept from: they run as the user of the service, who holds its keys."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import make_url

from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.payload import isolation

#: What SQLite keeps beside a database, by the end of its name.
_BESIDE = ("", "-wal", "-shm", "-journal")


def words(chosen: Settings) -> tuple[str, ...]:
    """The arguments of a pilot whose jobs see nothing of the installation."""
    if chosen.isolation == isolation.NONE:
        return ("--isolation", isolation.NONE)
    hidden = (word for path in _own(chosen) for word in ("--hide", str(path)))
    return ("--isolation", chosen.isolation, *hidden)


def check(chosen: Settings) -> None:
    """Try the isolation of local pilots.

    Raises:
        Refused: It cannot be had on this machine.
    """
    try:
        kind = isolation.choose_isolation(
            chosen.isolation,
            command=None,
            image=None,
            hidden=isolation.private_paths(os.environ, *_own(chosen)),
            own=os.environ,
        )
        isolation.check_isolation(kind, below=Path(tempfile.gettempdir()), own=os.environ)
    except (ValueError, HostTrouble) as error:
        raise CommandRefused(
            f"--site {chosen.site}: jobs of local pilots run as you, and cannot be kept from the keys and "
            f"tokens in {chosen.home}: {error}; where you trust everybody who submits jobs, "
            "add --isolation none"
        ) from None


def _own(chosen: Settings) -> Iterator[Path]:
    """Files and directories of the installation."""
    yield from (chosen.home, chosen.blobs, chosen.key, *chosen.given_secrets)
    for url in {chosen.database_url, chosen.direct_url}:
        database = make_url(url)
        if database.get_backend_name() == "sqlite" and database.database:
            yield from (Path(f"{database.database}{end}").absolute() for end in _BESIDE)
