"""What the jobs of local pilots are kept from: they run as the user of the service, who holds its keys."""

import logging
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

log = logging.getLogger(__name__)

#: What SQLite keeps beside a database, by the end of its name.
_BESIDE = ("", "-wal", "-shm", "-journal")
#: Where PostgreSQL listens when an address names no host. It trusts whoever connects there as our account.
_POSTGRESQL = ("/run/postgresql", "/var/run/postgresql")


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
    if kind.kind != isolation.NONE and os.getuid() == 0:
        log.warning(
            "jobs of local pilots run as root: they do not see %s, but may change programs and settings of "
            "this machine, and so take it over; start the service as another user",
            chosen.home,
        )


def _own(chosen: Settings) -> Iterator[Path]:
    """Files and directories of the installation, and the sockets by which it is served."""
    yield from (chosen.home, chosen.blobs, chosen.key, *chosen.given_secrets, *_program())
    if chosen.resources is not None:  # who can change it changes who may do what
        yield chosen.resources
    for url in sorted({chosen.database_url, chosen.direct_url}):
        yield from _of_database(url)
    redis = urlsplit(chosen.redis_url or "")
    if redis.scheme == "unix":
        yield Path(redis.path)


def _program() -> Iterator[Path]:
    """What the next local pilot is started from: a job that could change it would run as that pilot."""
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)
    source = Path(pilotage.__file__).absolute().parents[1]
    if not source.is_relative_to(sys.base_prefix):
        yield source


def _of_database(url: str) -> Iterator[Path]:
    database = make_url(url)
    if database.get_backend_name() == "sqlite":
        if database.database:
            yield from (Path(f"{database.database}{end}").absolute() for end in _BESIDE)
        return
    hosts = database.query.get("host") or database.host
    for host in (hosts,) if isinstance(hosts, str) else hosts or _POSTGRESQL:
        yield from (Path(each) for each in host.split(",") if each.startswith("/"))
