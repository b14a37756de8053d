"""Versions of the configuration and their differences, as far as someone may see them.

The caller owns the transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from cs_config.versions.permissions import Rights
from cs_config.versions.store import Version
from requirements.values import fold

#: Versions that are searched for one answer.
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A version with its visible changed paths."""

    version: Version
    paths: list[str] | None  #: None: not recorded


def list_visible(
    conn: Connection, config: Configuration, rights: Rights, *, limit: int, path: str = ""
) -> list[HistoryEntry]:
    """The latest versions that changed something visible at or around a path, newest first.

    A version that also changed hidden paths is shown without its message.
    """
    names = tuple(path.strip("/").split("/")) if path.strip("/") else ()
    found: list[HistoryEntry] = []
    about = store.list_versions(conn, limit if rights.everything and not names else _MOST)
    changes = store.list_changes_between(conn, about[0].version if about else 0)
    for version, (_, changed) in zip(about, changes, strict=False):
        entry = _visible_entry(config, rights, version, changed, names)
        if entry is not None:
            found.append(entry)
        if len(found) == limit:
            break
    return found


def _visible_entry(
    config: Configuration,
    rights: Rights,
    version: Version,
    changed: Sequence[str] | None,
    names: tuple[str, ...],
) -> HistoryEntry | None:
    if changed is None:
        return HistoryEntry(version=version, paths=None) if rights.everything and not names else None
    paths = [each for each in changed if rights.sees_path(config, tuple(each.split("/")))]
    if names:
        paths = [each for each in paths if _concerns(each, names)]
    if not paths and (names or not rights.everything):
        return None
    hidden = len(paths) < len(changed) and not rights.everything
    return HistoryEntry(version=replace(version, message="") if hidden else version, paths=paths)


def _concerns(path: str, names: tuple[str, ...]) -> bool:
    """Whether a changed path is above, at or below `names`; case-insensitive."""
    pairs = zip(path.split("/"), names, strict=False)
    return all(fold(changed) == fold(wanted) for changed, wanted in pairs)
