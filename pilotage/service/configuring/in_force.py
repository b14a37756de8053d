"""The version in force, and those that changes start from."""

from cs_config import live, versions
from cs_config.configuration import Configuration
from cs_config.errors import VersionConflict
from pilotage.service.parts import Parts
from taskqueue import database


def readable(parts: Parts) -> Configuration:
    """The newest version that this release can read, with what has expired."""
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)  # a change that starts from this answer should not find it outdated
    now = parts.live.current
    return now.written or now


def newest(parts: Parts) -> Configuration:
    """The newest version.

    Raises:
        ConfigError: It cannot be read by this release.
    """
    known = readable(parts)
    with database.reading(parts.engine) as conn:
        number = versions.current_version(conn)
        return known if known.version == number else versions.load(conn, number)


def version(parts: Parts, number: int, current: Configuration) -> Configuration:
    """A version that somebody starts from.

    Raises:
        VersionConflict: It is newer than the newest.
        ConfigError: It cannot be read by this release.
    """
    if number == current.version:
        return current
    if number > current.version:
        raise VersionConflict(expected=number, current=current.version)
    if number == 0:
        return live.NOTHING
    with database.reading(parts.engine) as conn:
        return versions.load(conn, number)
