"""Who somebody is to the configuration."""

from cs_config.rights import Rights
from pilotage.service.callers import Caller, Role


def of(caller: Caller) -> Rights:
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
