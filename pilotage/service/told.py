"""Of whose jobs a caller is told, and how much: the one rule below interface, command line and pages.

- *Controlled*: users have their own jobs, VO admins those of the VO, operators all.
- *Named*: told with owners, names and descriptions. The same, and jobs of the VOs that somebody stands for at
  the sites where he does.
- *Counted*: told in numbers, by VO, state, place and progress. The same, and for who looks after a site all
  that is there: what happens at a site is its admin's business, who in a VO does it is not.

What waits, pools and explanations are read by every member of a VO (`Caller.may_read`).
"""

from collections.abc import Callable, Iterator

from pilotage.service.callers import Caller, Role
from taskqueue.whose import Whose, widest


def controlled(caller: Caller) -> tuple[Whose, ...]:
    """The jobs that the caller lists one by one, and controls."""
    return _all_roles(caller, _controlled)


def named(caller: Caller) -> tuple[Whose, ...]:
    """The jobs of which it is told whose they are, and what they are called."""
    return _all_roles(caller, _named)


def counted(caller: Caller) -> tuple[Whose, ...]:
    """The jobs, and the pilots, of which it is told how many there are, where, and how far."""
    return _all_roles(caller, _counted)


def controls(caller: Caller, *, vo: str, owner: str) -> bool:
    """Whether a job is the caller's to look at with all that it says, and to end."""
    return any(each.has(vo=vo, owner=owner, site="") for each in controlled(caller))


def names(caller: Caller, *, vo: str, owner: str, site: str) -> bool:
    """Whether the caller is told whose a job at a site is, and what it is called."""
    return any(each.has(vo=vo, owner=owner, site=site) for each in named(caller))


def vos_at(caller: Caller, site: str) -> frozenset[str] | None:
    """The VOs whose jobs count for the caller at a site; None: all."""
    return None if caller.looks_after(site) else caller.visible_vos


def _controlled(caller: Caller) -> Iterator[Whose]:
    if caller.role is Role.USER:
        yield Whose(vos=caller.vos, owner=caller.user)
    elif caller.role in (Role.VO_ADMIN, Role.OPERATOR):
        yield Whose(vos=caller.visible_vos)


def _named(caller: Caller) -> Iterator[Whose]:
    yield from _controlled(caller)
    if caller.role in (Role.SITE_ADMIN, Role.GATEWAY, Role.DIRECTOR) and caller.vos:
        yield Whose(vos=caller.vos, sites=caller.sites or None)


def _counted(caller: Caller) -> Iterator[Whose]:
    yield from _named(caller)
    if caller.role is Role.SITE_ADMIN:
        yield Whose(sites=caller.sites)


def _all_roles(caller: Caller, told: Callable[[Caller], Iterator[Whose]]) -> tuple[Whose, ...]:
    return widest([whose for role in caller.each for whose in told(role)])
