"""The versions of the configuration in the database: immutable; the highest number is the current one.

The caller owns the transaction. If two callers store the same number, the primary key rejects one of them.
Numbers have gaps only where commits were lost. A path can be traced to the version (author, time, file) that
last changed it.

A running process follows them: its live configuration is kept up to date.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

from sqlalchemy import Connection, RowMapping, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from cs_config import notifications, validate
from cs_config.errors import ConfigError, VersionConflict, VersionNotFound, VersionRemoved
from cs_config.options import bounds
from cs_config.source import diff
from cs_config.source.sections import LineOrigins
from cs_config.tree.configuration import Configuration
from cs_config.validate import NOTHING_KEPT, Kept
from cs_config.versions.tables import config_imports, config_reverts, config_versions
from requirements.values import fold

#: Maximum number of changed paths stored with a version; otherwise each request that needs them reads and
#: compares both versions. No change of an administrator has more: so none slows the pages of others.
_MAX_CHANGED_PATHS = bounds.OWN_VALUES + bounds.EDITED_VALUES
#: Versions per query.
_PAGE = 50

_ABOUT = (
    config_versions.c.version,
    config_versions.c.digest,
    config_versions.c.source,
    config_versions.c.author,
    config_versions.c.message,
    config_versions.c.created_at,
)
CURRENT_VERSION = select(func.coalesce(func.max(config_versions.c.version), 0))
CURRENT_DIGEST = (
    select(config_versions.c.version, config_versions.c.digest)
    .order_by(config_versions.c.version.desc())
    .limit(1)
)
ONE_VERSION = select(*_ABOUT, config_versions.c.text, config_versions.c.origins).where(
    config_versions.c.version == bindparam("wanted")
)
CHANGED = select(config_versions.c.changed).where(config_versions.c.version == bindparam("wanted"))
CHANGED_UP_TO = (
    select(config_versions.c.version, config_versions.c.changed)
    .where(config_versions.c.version <= bindparam("newest"))
    .order_by(config_versions.c.version.desc())
    .limit(bindparam("most"))
)
HISTORY = select(*_ABOUT).order_by(config_versions.c.version.desc()).limit(bindparam("most"))
STORE = insert(config_versions)
REVERTED_PATHS = select(config_reverts.c.path)
DELETE_REVERT = delete(config_reverts).where(config_reverts.c.path == bindparam("of_path"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version without its text."""

    version: int
    digest: str  #: SHA-256 of the text
    source: str  #: name of the file, or `api`
    author: str
    message: str
    created_at: datetime


def current_digest(conn: Connection) -> tuple[int, str]:
    """The number of the current version and the digest of its text, which differs if commits were lost."""
    row = conn.execute(CURRENT_DIGEST).one_or_none()
    return (0, "") if row is None else (row.version, row.digest)


def current_version(conn: Connection) -> int:
    """The number of the current version; 0 if there is none yet."""
    return int(conn.execute(CURRENT_VERSION).scalar_one())


def load_version(
    conn: Connection, version: int | None = None, earlier: Configuration | None = None
) -> Configuration:
    """Load a version; the current one if no number is given. `earlier`: see `validate.parse`.

    Raises ConfigError if its text cannot be read by this release.
    """
    row = _row(conn, current_version(conn) if version is None else version)
    if row["text"] is None:
        raise VersionRemoved(row["version"])
    runs = row["origins"] and LineOrigins(tuple(map(tuple, json.loads(row["origins"]))))
    of = (row["source"], row["version"], row["author"], runs or None)
    return validate.parse(row["text"], *of, kept=None, earlier=earlier)


def _row(conn: Connection, version: int) -> RowMapping:
    row = conn.execute(ONE_VERSION, {"wanted": version}).mappings().one_or_none()
    if row is None:
        raise VersionNotFound(str(version))
    return row


def store_text(
    conn: Connection,
    text: str,
    *,
    author: str,
    message: str,
    source: str,
    expected: int | None,
    now: datetime,
    kept: Kept = NOTHING_KEPT,
) -> int:
    """Make a text, based on the version `expected` (None: any), the current version; return its number.

    Raises ConfigError if the text is wrong, VersionConflict if another version came first.
    """
    config = validate.parse(text, source, kept=kept)
    return store_checked(conn, config, author=author, message=message, expected=expected, now=now)


def store_checked(
    conn: Connection,
    config: Configuration,
    *,
    author: str,
    message: str,
    expected: int | None,
    now: datetime,
    changed: Sequence[str] | None = None,
) -> int:
    """Make a validated configuration, based on the version `expected` (None: any), the current one.

    `changed`: paths that differ from `expected`; None: to be computed on demand. Returns the new number, or
    raises VersionConflict if another version came first.
    """
    current = current_version(conn)
    if expected is not None and expected != current:
        raise VersionConflict(expected=expected, current=current)
    row = {
        "version": current + 1,
        "text": config.source,
        "digest": config.digest,
        "source": config.file,
        "author": author,
        "message": message,
        "created_at": now,
        "origins": None
        if config.origins == LineOrigins.from_file(config.file)
        else json.dumps(config.origins.runs),
        "changed": None
        if changed is None or len(changed) > _MAX_CHANGED_PATHS
        else json.dumps(list(changed)),
    }
    try:
        with conn.begin_nested():
            conn.execute(STORE, row)
    except IntegrityError as error:
        raise VersionConflict(expected=current, current=current_version(conn)) from error
    _cancel_reverts(conn, current + 1, changed)
    notifications.publish_after_commit(conn, notifications.CONFIGURATION)
    return current + 1


def _cancel_reverts(conn: Connection, version: int, changed: Sequence[str] | None) -> None:
    """Delete the reverts of values at, above or below the paths that a new version changes."""
    reverted = conn.execute(REVERTED_PATHS).scalars().all()
    if not reverted:
        return
    with suppress(ConfigError):  # not comparable; a value is compared again before it is restored
        paths = [fold(path) + "/" for path in (list_changes(conn, version) if changed is None else changed)]
        for path in reverted:
            own = fold(path) + "/"
            if any(own.startswith(other) or other.startswith(own) for other in paths):
                conn.execute(DELETE_REVERT, {"of_path": path})


def skip_numbers(conn: Connection, count: int, *, now: datetime) -> int:
    """Store the current version again, its number raised by `count`: lost numbers may have been used.

    Returns its new number; 0 if there is no version.
    """
    current = current_version(conn)
    if not current:
        return 0
    row = dict(_row(conn, current))
    renumbered = {
        "version": current + count,
        "author": "pilotage",
        "message": f"version {current} again, after a loss of commits",
        "created_at": now,
        "changed": "[]",
    }
    conn.execute(STORE, row | renumbered)
    notifications.publish_after_commit(conn, notifications.CONFIGURATION)
    return current + count


def list_versions(conn: Connection, limit: int = 100) -> list[Version]:
    """The latest versions, newest first."""
    rows = conn.execute(HISTORY, {"most": limit}).mappings()
    return [Version(**row) for row in rows]


def read_version(conn: Connection, version: int) -> Version:
    """The metadata of one version."""
    row = dict(_row(conn, version))
    del row["text"], row["origins"]
    return Version(**row)


def list_changes(conn: Connection, version: int) -> tuple[str, ...]:
    """The paths in which a version differs from the one before; an added or removed section is one path.

    Raises ConfigError if they were not stored, and one of the two cannot be read by this release.
    """
    noted = conn.execute(CHANGED, {"wanted": version}).scalar_one_or_none()
    if noted is not None:
        return tuple(json.loads(noted))
    after = load_version(conn, version).tree
    before = load_version(conn, version - 1).tree if version > 1 else {}
    return diff.list_paths(diff.compare(before, after))


def list_changes_between(
    conn: Connection, newest: int, *, oldest: int = 1
) -> Iterator[tuple[int, tuple[str, ...] | None]]:
    """`list_changes` of every version from one down to another; None if one of the two cannot be read."""
    while rows := conn.execute(CHANGED_UP_TO, {"newest": newest, "most": _PAGE}).all():
        for row in rows:
            if row.version < oldest:
                return
            changed: tuple[str, ...] | None = None
            if row.changed is not None:
                changed = tuple(json.loads(row.changed))
            else:
                with suppress(ConfigError, VersionNotFound):
                    changed = list_changes(conn, row.version)
            yield row.version, changed
        newest = rows[-1].version - 1


_FIRST = 1


def find_blame(conn: Connection, paths: Iterable[str], *, newest: int) -> Mapping[str, Version]:
    """The latest version that changed each path, spelled as in the tree, or a section around it."""
    # Each path with its enclosing sections.
    left = {path: frozenset(accumulate(path.split("/"), "{}/{}".format)) for path in paths}
    found: dict[str, Version] = {}
    for number, noted in list_changes_between(conn, newest, oldest=_FIRST + 1):
        if not left:
            break
        changed = frozenset(noted or ())
        made = [path for path, around in left.items() if around & changed]
        if made:
            found |= dict.fromkeys(made, read_version(conn, number))
            left = {path: around for path, around in left.items() if path not in found}
    # The first version created all remaining paths; comparing it with nothing would take longest of all.
    if left and _FIRST <= newest <= current_version(conn):
        found |= dict.fromkeys(left, read_version(conn, _FIRST))
    return found


#: Attempts of an import while others store versions too.
_TRIES = 10

LAST_IMPORT = select(config_imports.c.digest).where(config_imports.c.file == bindparam("of_file"))
_LATER_THAN_ITS_IMPORT = config_versions.c.version > (
    select(func.coalesce(func.max(config_imports.c.version), 0))
    .where(config_imports.c.file == bindparam("of_file"))
    .scalar_subquery()
)
#: The version made of a file by `config apply` since its last import.
APPLIED = select(func.max(config_versions.c.version)).where(
    config_versions.c.digest == bindparam("of_digest"),
    config_versions.c.source == bindparam("of_source"),
    _LATER_THAN_ITS_IMPORT,
)
RENEW_IMPORT = (
    update(config_imports)
    .where(config_imports.c.file == bindparam("of_file"))
    .values(digest=bindparam("new_digest"), version=bindparam("new_version"))
)
ADD_IMPORT = insert(config_imports)


def import_changed(conn: Connection, path: Path, *, author: str, now: datetime) -> int | None:
    """Make a file the current version, unless its content was imported from there or applied last.

    Returns its number. So a restart does not undo later edits over HTTP.
    """
    config = validate.load_file(path)
    for left in reversed(range(_TRIES)):
        try:
            return _import(conn, path, config, author=author, now=now)
        except VersionConflict:
            if not left:
                raise
    raise AssertionError("not reached")


def _import(conn: Connection, path: Path, config: Configuration, *, author: str, now: datetime) -> int | None:
    # The version is read first: a concurrent import of the same file would have stored a newer one.
    current = current_version(conn)
    file = str(path.resolve())
    new_digest = config.digest
    last = conn.execute(LAST_IMPORT, {"of_file": file}).scalar_one_or_none()
    if last == new_digest:
        return None
    applied = {"of_file": file, "of_digest": new_digest, "of_source": path.name}
    if (version := conn.execute(APPLIED, applied).scalar_one()) is not None:
        _remember_import(conn, file, new_digest, version)
        return None
    message = f"imported from {path.name}"
    version = store_text(
        conn,
        config.source,
        author=author,
        message=message,
        source=path.name,
        expected=current,
        now=now,
        kept=_kept_values(conn, current),
    )
    _remember_import(conn, file, new_digest, version)
    return version


def _kept_values(conn: Connection, version: int) -> frozenset[str]:
    """Paths of values of a version that only earlier releases took; none if it cannot be read."""
    with suppress(ConfigError, VersionNotFound):
        return load_version(conn, version).kept_values
    return frozenset()


def _remember_import(conn: Connection, file: str, new_digest: str, version: int) -> None:
    values = {"of_file": file, "new_digest": new_digest, "new_version": version}
    if conn.execute(RENEW_IMPORT, values).rowcount == 0:
        conn.execute(ADD_IMPORT, {"file": file, "digest": new_digest, "version": version})


log = logging.getLogger(__name__)


#: The configuration before the first version is stored.
NOTHING = validate.parse("Resources: {}", "nothing")


class LiveConfiguration:
    """The current version of the configuration; if a newer one cannot be read, the running one stays.

    A process that starts meanwhile runs the newest version that it can read. Thread-safe; readers never wait.
    """

    def __init__(
        self,
        load: Callable[[Connection, int, Configuration], Configuration] = load_version,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._load = load
        self._running = NOTHING
        self._clock = clock
        #: Number and digest of the running version, and of one that cannot be read. The digest is needed
        #: because after a loss of commits another text may get a known number.
        self._running_key = NOTHING.version, NOTHING.digest
        self._unreadable_key: tuple[int, str] | None = None
        self.problem: str | None = None  #: why the newest version is not the running one, if so
        self._refreshing = threading.Lock()

    @property
    def current(self) -> Configuration:
        """The current version without expired values. Read it once for values that belong together."""
        running = self._running
        return running.at_moment(self._clock()) if running.moments else running

    def refresh(self, conn: Connection, stored: Configuration | None = None) -> bool:
        """Load the newest version if there is another one; return whether `current` changed.

        Costs one small statement otherwise. `stored`: a version that this process has just stored, which is
        not read again if it is the newest. ConfigError if there are versions, and none can be read: an empty
        configuration would apply other rules to jobs.
        """
        with self._refreshing:
            newest = current_digest(conn)
            number, _ = newest
            if not number or newest in (self._running_key, self._unreadable_key):
                return False
            try:
                if stored is not None and (stored.version, stored.digest) == newest:
                    self._running = stored
                else:
                    self._running = self._load(conn, number, self._running)
            except ConfigError as error:
                is_first = not self._running.version
                if is_first and not self._load_earlier(conn, number):
                    raise
                self._unreadable_key, self.problem = newest, str(error)
                log.warning(
                    "configuration %d cannot be read, %d stays: %s", number, self.current.version, error
                )
                return is_first
            self._running_key = newest
            self._unreadable_key = self.problem = None
            return True

    def _load_earlier(self, conn: Connection, number: int) -> bool:
        """Load the newest readable one of the latest versions before this; False: there is none."""
        for version in list_versions(conn):
            if version.version < number:
                with suppress(ConfigError, VersionRemoved):
                    self._running = self._load(conn, version.version, self._running)
                    self._running_key = version.version, version.digest
                    return True
        return False
