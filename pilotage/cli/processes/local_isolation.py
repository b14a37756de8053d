"""Isolation of the jobs of local pilots: they run as the user of the service, who can read its keys."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url

import pilotage
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.payload import isolation

#: Suffixes of the files of an SQLite database.
_BESIDE = ("", "-wal", "-shm", "-journal")
#: Directories of the default sockets of PostgreSQL, where it trusts connections of our account.
_POSTGRESQL = ("/run/postgresql", "/var/run/postgresql")


def words(chosen: Settings) -> tuple[str, ...]:
    """Arguments of a pilot that hide the installation from its jobs."""
    if chosen.isolation == isolation.NONE:
        return ("--isolation", isolation.NONE)
    hidden = (word for path in _own(chosen) for word in ("--hide", str(path)))
    return ("--isolation", chosen.isolation, *hidden)


def check(chosen: Settings) -> None:
    """Test the isolation of local pilots.

    Raises:
        CommandRefused: This machine does not support it.
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
    """Files, directories and sockets of the installation."""
    yield from (chosen.home, chosen.blobs, chosen.key, *chosen.foreign_secrets, *_program())
    if chosen.resources is not None:  # it defines permissions
        yield chosen.resources
    for url in sorted({chosen.database_url, chosen.direct_url}):
        yield from _database_paths(url)
    redis = urlsplit(chosen.redis_url or "")
    if redis.scheme == "unix":
        yield Path(redis.path)


def _program() -> Iterator[Path]:
    """Directories of the program: a job that could change them would run code in the next local pilot."""
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)
    source = Path(pilotage.__file__).absolute().parents[1]
    if not source.is_relative_to(sys.base_prefix):
        yield source


def _database_paths(url: str) -> Iterator[Path]:
    database = make_url(url)
    if database.get_backend_name() == "sqlite":
        if database.database:
            yield from (Path(f"{database.database}{end}").absolute() for end in _BESIDE)
        return
    hosts = database.query.get("host") or database.host
    for host in (hosts,) if isinstance(hosts, str) else hosts or _POSTGRESQL:
        yield from (Path(each) for each in host.split(",") if each.startswith("/"))
