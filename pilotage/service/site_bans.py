"""Banning sites and allowing them again, for those who look after them."""

from datetime import datetime

from pilotage.service import audit, site_scope
from pilotage.service.callers import Caller
from pilotage.service.parts import Parts
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from taskqueue import bans, database
from taskqueue.bans import Ban


def ban(parts: Parts, caller: Caller, site: str, *, reason: str, until: datetime | None) -> None:
    """Give a site no jobs but tests; a ban that there is already is replaced.

    Raises:
        NotAllowed, SiteNotFound: It is not the caller's, or nobody's.
        InvalidRequest: The end has no time zone, or is over.
    """
    site_scope.require(caller, parts.live.current, site)
    now = parts.clock()
    _require_end(until, now)
    new = Ban(site=site, reason=reason, author=caller.subject, at=now, until=until)
    with database.writing(parts.engine) as conn:
        bans.ban(conn, new)
    audit.done(caller, "ban", site=site, reason=reason, until=until.isoformat() if until else "")


def allow(parts: Parts, caller: Caller, site: str) -> None:
    """Give a site jobs again.

    Raises:
        NotAllowed, SiteNotFound: It is not the caller's, or nobody's.
    """
    site_scope.require(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        bans.allow(conn, site)
    audit.done(caller, "allow", site=site)


def _require_end(until: datetime | None, now: datetime) -> None:
    problem = None
    if until is not None and until.tzinfo is None:
        problem = f"{until} has no time zone"
    elif until is not None and until <= now:
        problem = f"{until} is over, it is {now.replace(microsecond=0)}"
    if problem is not None:
        raise InvalidRequest([Problem(path="until", message=problem)])
