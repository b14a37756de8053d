"""The version in force, versions that changes start from, and a caller's rights."""

from cs_config.errors import VersionConflict
from cs_config.tree.configuration import Configuration
from cs_config.versions import live, store
from cs_config.versions.permissions import Rights
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.services import Services
from taskqueue.db import database


def readable(parts: Services) -> Configuration:
    """The newest version that this release can read, as written, with expired sections."""
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)  # a change based on this answer should not conflict with a known version
    now = parts.live.current
    return now.written or now


def newest(parts: Services) -> Configuration:
    """The newest version; `ConfigError` if this release cannot read it."""
    known = readable(parts)
    with database.reading(parts.engine) as conn:
        number = store.current_version(conn)
        return known if known.version == number else store.load_version(conn, number)


def version(parts: Services, number: int, current: Configuration) -> Configuration:
    """A version that a change starts from.

    Raises:
        VersionConflict: It is newer than the newest.
        ConfigError: This release cannot read it.
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
    """The caller's rights on the configuration."""
    if caller.is_operator:
        return Rights(everything=True)
    return Rights(
        sees=caller.visible_vos or frozenset(),
        vos=frozenset().union(*(one.vos for one in caller.each if one.role is Role.VO_ADMIN)),
        sites=caller.own_sites,
    )


def author(caller: Caller) -> str:
    """The author's name in the history."""
    return caller.user or caller.subject
