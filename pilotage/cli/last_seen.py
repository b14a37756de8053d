"""How far this host has seen the database come, kept in the home directory.

A database that knows less than that has lost commits: a backup was restored, or a replica promoted that
was behind. Nothing starts on it until somebody has recovered, since what was lost would be given out
again. What this host never saw it cannot miss.
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
    """What was seen of this database; None: nothing yet, or it cannot be read."""
    try:
        seen = _all(settings)[_name(settings)]
        return InstallationState(incarnation=int(seen["incarnation"]), log_id=int(seen["log_id"]))
    except (ValueError, KeyError, TypeError):
        return None


def write_last_seen(settings: Settings, standing: InstallationState) -> None:
    """Note it, beside what was seen of other databases; several processes share a home directory.

    What another process has seen since stays, unless the log is empty: then this is a new database.
    """
    file = _file(settings)
    aside = file.with_name(f".{FILE}.new")
    # A home that is gone or not ours to write: then nothing is noted.
    with contextlib.suppress(OSError), _locked(settings):
        seen = read_last_seen(settings)
        if seen is None or not standing.log_id or not standing.is_behind(seen):
            aside.write_text(json.dumps({**_all(settings), _name(settings): asdict(standing)}))
            aside.replace(file)


def compare(engine: Engine, settings: Settings) -> tuple[InstallationState, str | None]:
    """The standing of the database, and what to report if it is behind what was seen of it; None: it is not.

    A log that is empty is a new database, not an old one.
    """
    # The file first: what another process notes while we look is no loss.
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
    """The standing of the installation, as the process saw it last."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Look for the first time.

        Raises:
            Refused: The database has lost commits.
        """
        self._engine = engine
        self._settings = settings
        self._told = False
        self._standing, problem = compare(engine, settings)
        if problem is not None:
            raise CommandRefused(problem)
        write_last_seen(settings, self._standing)

    @property
    def incarnation(self) -> int:
        """Of the installation; grows when commits were lost."""
        return self._standing.incarnation

    def look(self, _now: datetime) -> None:
        """Look again, and note how far it has come; a database that went back is told of once."""
        standing, problem = compare(self._engine, self._settings)
        if problem is not None and not self._told:
            log.error("%s", problem)
        self._told = problem is not None
        if problem is None:
            self._standing = standing
            write_last_seen(self._settings, standing)


def _all(settings: Settings) -> dict[str, Any]:
    """What was seen, by the name of the database."""
    try:
        seen = json.loads(_file(settings).read_text())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


@contextlib.contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    """Keep other processes from writing until the end of the block."""
    with (settings.home / _LOCK).open("a") as lock:  # no directory: on NFS only what is written can be locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file(settings: Settings) -> Path:
    return settings.home / FILE


def _name(settings: Settings) -> str:
    return cli_engine.hide_password(settings.database_url)
