"""Opens the configured database; an unreachable one becomes an error in one line.

The last commit of this host that the database acknowledged is stored in the home directory. A database behind
it has lost commits: a backup was restored, or a replica promoted that was behind (`taskqueue.db.history`).
No process starts on it before `pilotage db recover`, and none that runs stores anything, since lost
identifiers would be used again. With the setting `recovery: automatic` the first that notices it recovers.
"""

import contextlib
import fcntl
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import InvalidSettings, Recovery, Settings
from requirements.errors import Problem
from taskqueue.db import clock, database, history, incarnation, sql
from taskqueue.db.history import HistoryState, SeenCommit
from taskqueue.schema.tables import jobs

log = logging.getLogger(__name__)


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


def make_engine(url: str, *, pool_size: int, setting: str = "database_url") -> Engine:
    """An engine; the caller disposes of it."""
    try:
        return database.connect(url, pool_size=pool_size)
    except (ValueError, ArgumentError, NoSuchModuleError) as error:
        raise InvalidSettings([Problem(path=setting, message=str(error))]) from None


def upgrade_schema(url: str, *, first_job_id: int = 1, report: Callable[[str], None] = log.info) -> bool:
    """Create the tables, or upgrade them to this release; new jobs get ids from `first_job_id` on.

    `report` gets lines about what may take minutes. Returns whether the tables were created.
    """
    engine = make_engine(url, pool_size=1)
    try:
        with translate_unreachable(url):
            is_new = database.upgrade(url, report)
            if first_job_id > 1:
                with database.writing(engine) as conn:
                    sql.raise_ids(conn, jobs, first_job_id)
            return is_new
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
    """The URL without its password, also where it names several servers."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return re.sub(r"(://[^/@]*:|password=)[^/@&]*", r"\1***", url)
    return parsed.difference_update_query(_password_options(parsed)).render_as_string(hide_password=True)


def _password_options(url: URL) -> list[str]:
    return [name for name in url.query if "password" in name]


FILE = "last-seen.json"
_LOCK = "last-seen.lock"
#: Key in the file; the others are databases, with what 1.0.0 stores of each.
_COMMITS = "commits"
REMEDY = "run `pilotage db recover`"


def read_last_seen(settings: Settings) -> SeenCommit | None:
    """What this home directory knows of the database; None: nothing yet, or the file is unreadable."""
    try:
        seen = _commits(settings)[_name(settings)]
        return SeenCommit(
            home=str(seen["home"]),
            incarnation=int(seen["incarnation"]),
            number=int(seen["number"]),
            at=datetime.fromisoformat(seen["at"]) if seen["at"] else None,
            is_lost=bool(seen["is_lost"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def write_last_seen(settings: Settings, seen: SeenCommit) -> None:
    """Store what is known, beside that of other databases; call it in `_locked`."""
    file = _file(settings)
    aside = file.with_name(f".{FILE}.new")
    entry = asdict(seen) | {"at": seen.at and seen.at.isoformat()}
    content = {**_all(settings), _COMMITS: {**_commits(settings), _name(settings): entry}}
    # Nothing is stored if the home directory is missing or not writable.
    with contextlib.suppress(OSError):
        aside.write_text(json.dumps(content))
        aside.replace(file)


def compare(engine: Engine, settings: Settings) -> tuple[HistoryState, str | None]:
    """The state of the database, and a message if it has lost commits, else None."""
    # The file first: a commit that another process stores meanwhile is no loss.
    seen = read_last_seen(settings) or SeenCommit(home="")
    with database.reading(engine) as conn:
        state = history.read_state(conn, seen.home, now=clock.utc_now())
    return state, _describe_loss(settings, state, seen) if state.has_loss(seen) else None


def _describe_loss(settings: Settings, state: HistoryState, seen: SeenCommit) -> str:
    where = hide_password(settings.database_url)
    if not state.is_behind(seen):
        return f"{where} has lost commits (incarnation {state.incarnation}), as was noticed before: {REMEDY}"
    return (
        f"{where} has lost commits: the last one from here is {state.number or 0} there "
        f"(incarnation {state.incarnation}), but {seen.number} ({seen.incarnation}) was acknowledged: "
        f"{REMEDY}"
    )


def refuse_lost(engine: Engine, settings: Settings) -> HistoryState:
    """The state of the database; `CommandRefused` if it has lost commits, which nobody recovers here."""
    state, problem = compare(engine, settings)
    if problem is not None and settings.recovery is Recovery.AUTOMATIC:
        recover(engine, read_last_seen(settings) or SeenCommit(home=""))
        state, problem = compare(engine, settings)
    if problem is not None:
        raise CommandRefused(problem)
    return state


def recover(engine: Engine, seen: SeenCommit) -> None:
    """Recover from lost commits as `pilotage db recover` does, unless another process has done it.

    A database without the row of this home directory may be another one at the same address, or much older:
    nothing is changed there without an operator.
    """
    with database.writing(engine, despite_loss=True) as conn:
        conn.execute(incarnation.LOCK)
        now = clock.read_time(conn, clock.utc_now())
        state = history.read_state(conn, seen.home, now=now)
        is_foreign = state.number is None and seen.number > 0
        if is_foreign or not state.has_loss(seen):
            return
        done = incarnation.recover(conn, now=now)
    log.error(
        "lost commits are recovered from without an operator: incarnation %d, %d open attempts wait for "
        "their pilots, submissions since %s may have to be repeated",
        *(done.incarnation, done.quarantined, done.last_commit),
    )


class LastSeen:
    """What this process knows of the history of the database, and its home directory with it."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Contacts nothing yet; until `start` or `look` the incarnation is the one seen last from here."""
        self._engine = engine
        self._settings = settings
        # If the home directory cannot be written, this process alone has it.
        self._seen = read_last_seen(settings) or SeenCommit(home=f"{socket.gethostname()}:{token_hex(8)}")
        self._confirmed = time.monotonic()

    @property
    def commit_age(self) -> float:
        """Seconds since the database confirmed a commit; it grows while commits hang."""
        return time.monotonic() - self._confirmed

    @property
    def incarnation(self) -> int:
        """Incarnation of the installation; it grows with each recovery from lost commits."""
        return self._seen.incarnation

    def start(self) -> None:
        """Read the incarnation; `CommandRefused` if the database has lost commits."""
        state = refuse_lost(self._engine, self._settings)
        if state.incarnation > self._seen.incarnation:
            self._seen = SeenCommit(home=self._seen.home, incarnation=state.incarnation)

    def look(self, now: datetime) -> None:
        """Compare, and commit; after a loss the engine stores nothing until a recovery, perhaps by us."""
        with _locked(self._settings):
            seen = self._read()
            with database.writing(self._engine, despite_loss=True) as conn:
                state = history.read_state(conn, seen.home, now=now)
                after = state.next_commit(seen)
                if after.is_lost:
                    self._store(after)  # before the commit: it may fail, and the loss remains one
                self._report(state, seen, after)
                history.record(conn, state, after)
            self._confirmed = time.monotonic()
            self._store(after)
        if after.is_lost and self._settings.recovery is Recovery.AUTOMATIC:
            recover(self._engine, after)

    def _read(self) -> SeenCommit:
        """The file, unless it is older than what this process knows: it may be missing, or unwritable."""
        seen = read_last_seen(self._settings) or self._seen
        if seen.home != self._seen.home:
            return seen
        return max(seen, self._seen, key=lambda known: (known.incarnation, known.is_lost, known.number))

    def _store(self, seen: SeenCommit) -> None:
        self._seen = seen
        write_last_seen(self._settings, seen)

    def _report(self, state: HistoryState, seen: SeenCommit, after: SeenCommit) -> None:
        if after.is_lost == database.is_lost(self._engine):
            return
        database.set_lost(self._engine, is_lost=after.is_lost)
        if after.is_lost:
            log.error("%s", _describe_loss(self._settings, state, seen))
        else:
            log.warning("lost commits are recovered from: incarnation %d", state.incarnation)


def _all(settings: Settings) -> dict[str, Any]:
    try:
        content = json.loads(_file(settings).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _commits(settings: Settings) -> dict[str, Any]:
    commits = _all(settings).get(_COMMITS)
    return commits if isinstance(commits, dict) else {}


@contextlib.contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    """Keep other processes of the home directory out until the end of the block, if it can be written."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            # On NFS only a file open for writing can be locked.
            lock = stack.enter_context((settings.home / _LOCK).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file(settings: Settings) -> Path:
    return settings.home / FILE


def _name(settings: Settings) -> str:
    return hide_password(settings.database_url)
