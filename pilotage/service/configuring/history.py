"""Versions of the configuration and their differences, as far as a caller may see them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, permissions, store
from cs_config.versions.diff import Difference
from cs_config.versions.permissions import Rights
from cs_config.versions.store import Version
from pilotage.service.auth.callers import Caller
from pilotage.service.configuring import in_force
from pilotage.service.services import Services
from requirements.values import fold
from taskqueue.db import database

#: Versions that are searched for one answer.
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A version with its visible changed paths."""

    version: Version
    paths: list[str] | None  #: None: not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDiff:
    """The differences between two versions."""

    after: int
    differences: tuple[Difference, ...]


def read(parts: Services, caller: Caller, *, limit: int, path: str = "") -> list[HistoryEntry]:
    """The latest versions that changed something visible to the caller at or around a path, newest first.

    A version that also changed hidden paths is shown without its message.
    """
    allowed = in_force.rights_of(caller)
    current = in_force.readable(parts)
    names = tuple(path.strip("/").split("/")) if path.strip("/") else ()
    found: list[HistoryEntry] = []
    with database.reading(parts.engine) as conn:
        about = store.list_versions(conn, limit if allowed.everything and not names else _MOST)
        changes = store.list_changes_between(conn, about[0].version if about else 0)
        for version, (_, changed) in zip(about, changes, strict=False):
            entry = _visible_paths(current, allowed, version, changed, names)
            if entry is not None:
                found.append(entry)
            if len(found) == limit:
                break
    return found


def _visible_paths(
    config: Configuration,
    allowed: Rights,
    version: Version,
    changed: Sequence[str] | None,
    names: tuple[str, ...],
) -> HistoryEntry | None:
    if changed is None:
        return HistoryEntry(version=version, paths=None) if allowed.everything and not names else None
    paths = [each for each in changed if allowed.sees_path(config, tuple(each.split("/")))]
    if names:
        paths = [each for each in paths if concerns(each, names)]
    if not paths and (names or not allowed.everything):
        return None
    hidden = len(paths) < len(changed) and not allowed.everything
    return HistoryEntry(version=replace(version, message="") if hidden else version, paths=paths)


def concerns(path: str, names: tuple[str, ...]) -> bool:
    """Whether a changed path is above, at or below `names`; case-insensitive."""
    changed = tuple(map(fold, path.split("/")))
    wanted = tuple(map(fold, names))
    shorter = min(len(changed), len(wanted))
    return changed[:shorter] == wanted[:shorter]


def between(parts: Services, caller: Caller, *, before: int, after: int | None) -> VersionDiff:
    """The visible differences between two versions; `after=None`: the newest.

    Raises:
        VersionNotFound: There is no such version.
        ConfigError: This release cannot read one of them.
    """
    allowed = in_force.rights_of(caller)
    current = in_force.newest(parts)
    with database.reading(parts.engine) as conn:
        old = current if before == current.version else store.load_version(conn, before)
        new = current if after in (None, current.version) else store.load_version(conn, after)
    found = diff.compare(permissions.visible_tree(old, allowed), permissions.visible_tree(new, allowed))
    return VersionDiff(after=new.version, differences=found)
