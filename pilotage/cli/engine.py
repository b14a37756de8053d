"""Opens the configured database; an unreachable one becomes an error in one line.

The latest state of the database that this host has seen, stored in the home directory.

A database behind that state has lost commits: a backup was restored, or a replica promoted that was behind.
No process starts on it before `pilotage db recover`, since lost identifiers would be used again. Losses of
commits that this host never saw are not detected.
"""

import contextlib
import fcntl
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import InvalidSettings, Settings
from requirements.errors import Problem
from taskqueue.db import database, incarnation, sql
from taskqueue.db.incarnation import InstallationState
from taskqueue.schema.tables import jobs


@contextmanager
def open_engine(url: str, *, pool_size: int = 5) -> Iterator[Engine]:
    """An engine for a short command."""
    engine = make_engine(url, pool_size=pool_size)
    file = engine.url.database or ""
    if engine.dialect.name == "sqlite" and not Path(file).exists():
        raise CommandRefused(f"the database {file} does not exist; `pilotage db upgrade` makes it")
    try:
        with translate_unreachable(url):
            yield engine
    finally:
        engine.dispose()


def make_engine(url: str, *, pool_size: int) -> Engine:
    """An engine; the caller disposes of it."""
    try:
        return database.connect(url, pool_size=pool_size)
    except (ValueError, ArgumentError, NoSuchModuleError) as error:
        raise InvalidSettings([Problem(path="database_url", message=str(error))]) from None


def upgrade_schema(url: str, *, first_job_id: int = 1) -> None:
    """Create the tables, or upgrade them to this release; new jobs get ids from `first_job_id` on."""
    engine = make_engine(url, pool_size=1)
    try:
        with translate_unreachable(url):
            database.upgrade(url)
            if first_job_id > 1:
                with database.writing(engine) as conn:
                    sql.raise_ids(conn, jobs, first_job_id)
    finally:
        engine.dispose()


@contextmanager
def translate_unreachable(url: str) -> Iterator[None]:
    """Translate the driver's errors about an unreachable database."""
    try:
        yield
    except database.UNAVAILABLE as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise CommandRefused(f"the database {hide_password(url)} cannot be used: {cause}") from None


def may_have_password(url: str) -> bool:
    """Whether a URL holds a password, as its user part or as a query option; True if it is invalid."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return True
    return parsed.password is not None or bool(_password_options(parsed))


def hide_password(url: str) -> str:
    """The URL without its password."""
    parsed = make_url(url)
    return parsed.difference_update_query(_password_options(parsed)).render_as_string(hide_password=True)


def _password_options(url: URL) -> list[str]:
    return [name for name in url.query if "password" in name]


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
        f"{hide_password(settings.database_url)} has lost commits: "
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
    return hide_password(settings.database_url)
