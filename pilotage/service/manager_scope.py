"""Which grid jobs in the hands of job managers a caller may see."""

from pilotage.service.callers import Caller, Role
from taskqueue.grid_jobs import Filter


def visible(caller: Caller, *, site: str | None) -> Filter:
    """The filter for what was asked, narrowed to what is the caller's.

    Users see their own jobs, VO admins those of their VOs, site admins all at their sites, gateways those of
    their VOs at their sites.
    """
    asked = None if site is None else frozenset({site})
    if caller.is_operator:
        return Filter(sites=asked)
    if caller.role is Role.SITE_ADMIN:
        return Filter(sites=caller.sites if asked is None else asked & caller.sites)
    own = caller.sites or None
    sites = asked if own is None else own if asked is None else asked & own
    return Filter(vos=caller.vos, sites=sites, owner=caller.user if caller.role is Role.USER else None)
