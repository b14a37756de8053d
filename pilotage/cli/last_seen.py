"""How far this host has seen the database come, kept in the home directory.

A database that knows less than that has lost commits: a backup was restored, or a replica promoted that
was behind. Nothing starts on it until somebody has recovered, since what was lost would be given out
again. What this host never saw it cannot miss.
"""

import contextlib
import json
import logging
import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine

from pilotage.cli import databases
from pilotage.cli.failures import Refused
from pilotage.cli.settings import Settings
from taskqueue import database, installation
from taskqueue.installation import Standing

log = logging.getLogger(__name__)

FILE = "last-seen.json"
REMEDY = "run `pilotage db recover`"


def read(settings: Settings) -> Standing | None:
    """What was seen of this database; None: nothing yet, or it cannot be read."""
    try:
        seen = json.loads(_file(settings).read_text())[_name(settings)]
        return Standing(incarnation=int(seen["incarnation"]), log_id=int(seen["log_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(settings: Settings, standing: Standing) -> None:
    """Note it; the last one to write wins, since several processes may share a home directory."""
    file = _file(settings)
    aside = file.with_name(f".{FILE}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a home that is gone or not ours to write: then nothing is noted
        aside.write_text(json.dumps({_name(settings): asdict(standing)}))
        aside.replace(file)


def lost(settings: Settings, standing: Standing) -> str | None:
    """What to say if the database knows less than was seen of it; None: it does not.

    A log that is empty is a new database, not an old one.
    """
    seen = read(settings)
    if seen is None or not standing.log_id or not standing.is_behind(seen):
        return None
    return (
        f"{databases.shown(settings.database_url)} has lost commits: its log ends at {standing.log_id} "
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
        self._standing = self._now()
        if (problem := lost(settings, self._standing)) is not None:
            raise Refused(problem)
        write(settings, self._standing)

    @property
    def incarnation(self) -> int:
        """Of the installation; grows when commits were lost."""
        return self._standing.incarnation

    def look(self, _now: datetime) -> None:
        """Look again, and note how far it has come; a database that went back is told of once."""
        standing = self._now()
        problem = lost(self._settings, standing)
        if problem is not None and not self._told:
            log.error("%s", problem)
        self._told = problem is not None
        if problem is None:
            self._standing = standing
            write(self._settings, standing)

    def _now(self) -> Standing:
        with database.reading(self._engine) as conn:
            return installation.standing(conn)


def _file(settings: Settings) -> Path:
    return settings.home / FILE


def _name(settings: Settings) -> str:
    return databases.shown(settings.database_url)
