"""The version in force, and those that changes start from.

Who somebody is to the configuration.
"""

from cs_config.errors import VersionConflict
from cs_config.tree.configuration import Configuration
from cs_config.versions import live, store
from cs_config.versions.permissions import Rights
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.services import Services
from taskqueue.db import database


def readable(parts: Services) -> Configuration:
    """The newest version that this release can read, with what has expired."""
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)  # a change that starts from this answer should not find it outdated
    now = parts.live.current
    return now.written or now


def newest(parts: Services) -> Configuration:
    """The newest version.

    Raises:
        ConfigError: It cannot be read by this release.
    """
    known = readable(parts)
    with database.reading(parts.engine) as conn:
        number = store.current_version(conn)
        return known if known.version == number else store.load_version(conn, number)


def version(parts: Services, number: int, current: Configuration) -> Configuration:
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
        return store.load_version(conn, number)


def rights_of(caller: Caller) -> Rights:
    """What somebody may do with the configuration."""
    if caller.is_operator:
        return Rights(everything=True)
    return Rights(
        sees=caller.visible_vos or frozenset(),
        vos=frozenset().union(*(one.vos for one in caller.each if one.role is Role.VO_ADMIN)),
        sites=caller.own_sites,
    )


def author(caller: Caller) -> str:
    """Under which name the history has somebody's versions."""
    return caller.user or caller.subject
