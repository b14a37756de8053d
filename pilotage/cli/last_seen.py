"""The latest state of the database that this host has seen, stored in the home directory.

A database behind that state has lost commits: a backup was restored, or a replica promoted that was behind.
No process starts on it before `pilotage db recover`, since lost identifiers would be used again. Losses of
commits that this host never saw are not detected.
"""

import contextlib
import fcntl
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pilotage.cli import engine as cli_engine
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from taskqueue.db import database, incarnation
from taskqueue.db.incarnation import InstallationState

log = logging.getLogger(__name__)

FILE = "last-seen.json"
_LOCK = "last-seen.lock"
REMEDY = "run `pilotage db recover`"


def read_last_seen(settings: Settings) -> InstallationState | None:
    """The latest state seen of this database; None: none yet, or the file is unreadable."""
    try:
        seen = _all(settings)[_name(settings)]
        return InstallationState(incarnation=int(seen["incarnation"]), log_id=int(seen["log_id"]))
    except (ValueError, KeyError, TypeError):
        return None


def write_last_seen(settings: Settings, standing: InstallationState) -> None:
    """Store the state, beside those of other databases; several processes share a home directory.

    A later state stored by another process is kept, unless the log is empty: then this is a new database.
    """
    file = _file(settings)
    aside = file.with_name(f".{FILE}.new")
    # Nothing is stored if the home directory is missing or not writable.
    with contextlib.suppress(OSError), _locked(settings):
        seen = read_last_seen(settings)
        if seen is None or not standing.log_id or not standing.is_behind(seen):
            aside.write_text(json.dumps({**_all(settings), _name(settings): asdict(standing)}))
            aside.replace(file)


def compare(engine: Engine, settings: Settings) -> tuple[InstallationState, str | None]:
    """The state of the database, and a message if it is behind the state seen before, else None.

    An empty log is that of a new database, not of one that lost commits.
    """
    # The file first: a state that another process stores meanwhile is not a loss.
    seen = read_last_seen(settings)
    with database.reading(engine) as conn:
        standing = incarnation.read_state(conn)
    if seen is None or not standing.log_id or not standing.is_behind(seen):
        return standing, None
    return standing, (
        f"{cli_engine.hide_password(settings.database_url)} has lost commits: "
        f"its log ends at {standing.log_id} "
        f"(incarnation {standing.incarnation}), but {seen.log_id} ({seen.incarnation}) was seen from here: "
        f"{REMEDY}"
    )


class LastSeen:
    """The state of the installation that this process has seen last."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Read and store the state."""
        self._engine = engine
        self._settings = settings
        self._reported = False
        self._standing, problem = compare(engine, settings)
        if problem is not None:
            raise CommandRefused(problem)
        write_last_seen(settings, self._standing)

    @property
    def incarnation(self) -> int:
        """Incarnation of the installation; it grows with each recovery from lost commits."""
        return self._standing.incarnation

    def look(self, _now: datetime) -> None:
        """Read and store the state again; lost commits are logged once."""
        standing, problem = compare(self._engine, self._settings)
        if problem is not None and not self._reported:
            log.error("%s", problem)
        self._reported = problem is not None
        if problem is None:
            self._standing = standing
            write_last_seen(self._settings, standing)


def _all(settings: Settings) -> dict[str, Any]:
    try:
        seen = json.loads(_file(settings).read_text())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


@contextlib.contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    """Keep other processes from writing until the end of the block."""
    with (settings.home / _LOCK).open("a") as lock:  # on NFS only a file open for writing can be locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file(settings: Settings) -> Path:
    return settings.home / FILE


def _name(settings: Settings) -> str:
    return cli_engine.hide_password(settings.database_url)
