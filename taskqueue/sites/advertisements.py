"""Advertisements: a site says how many jobs it has, and which of our matches that contains.

The site fetches a watermark, counts, and advertises as of the watermark. Every attempt whose start was
recorded when the watermark was given out is in the count, or has left the site: a job is there before its
start is reported. No clocks are compared. An advertisement without watermark counts as one that was taken
after the advertisement before.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import BindParameter, Connection, bindparam, select

from requirements.errors import InvalidRequest, Problem
from requirements.values import Value
from taskqueue.db import sql
from taskqueue.schema.tables import attempts
from taskqueue.sites import reservations, scopes
from taskqueue.sites.reservations import AttemptKey
from taskqueue.sites.scopes import SET_WATERMARK, Scope

log = logging.getLogger(__name__)

_LEASES: BindParameter[str] = bindparam("leases", expanding=True)
BY_LEASE = select(attempts.c.job_id, attempts.c.epoch).where(attempts.c.lease.in_(_LEASES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """What a site, CE or queue says of its state."""

    attributes: Mapping[str, Value]  #: counters, limits, and whatever else it wants its expressions to know
    as_of: int | None = None  #: the watermark that was fetched before it counted
    leases_seen: Sequence[str] = ()  #: attempts that the counts contain
    attempts_seen: Sequence[AttemptKey] = field(default=())  #: the same, by job and epoch
    taken_at: str | None = None  #: for people


def create_watermark(conn: Connection, site: str) -> int:
    """A new watermark of a site: higher than all before."""
    return _next_watermark(conn, scopes.lock_scopes(conn, [site])[site])


def accept_advertisement(conn: Connection, scope: str, said: Advertisement, *, now: datetime) -> bool:
    """Take an advertisement for the state of a scope; False: a later one is known already.

    Raises:
        InvalidRequest: Its watermark was never given out.
    """
    locked = scopes.lock_scopes(conn, scopes.list_enclosing(scope))
    site, current = locked[scopes.parse_site(scope)], locked[scope]
    if said.as_of is not None and not 0 < said.as_of <= site.watermark:
        message = f"{said.as_of} is no watermark of {site.scope}; the last one is {site.watermark}"
        raise InvalidRequest([Problem(path="as_of", message=message)])
    if said.as_of is not None and said.as_of < current.as_of:
        log.warning("%s: advertisement as of %d ignored, %d is known", scope, said.as_of, current.as_of)
        return False
    # Without watermark: contained is what had begun at the advertisement before, and whoever fetched a
    # watermark before this one comes too late.
    contained = current.as_of if said.as_of is None else said.as_of
    as_of = _next_watermark(conn, site) if said.as_of is None else said.as_of
    seen = sorted({*said.attempts_seen, *_find_attempts(conn, said.leases_seen)})
    reservations.acknowledge(conn, scope, as_of=contained, seen=seen)
    scopes.store_state(conn, scope, said.attributes, as_of=as_of, taken_at=said.taken_at, now=now)
    return True


def _next_watermark(conn: Connection, site: Scope) -> int:
    """Under the lock of the site: the starts that this statement sees were recorded before it is given."""
    watermark = site.watermark + 1
    conn.execute(SET_WATERMARK, {"the_scope": site.scope, "the_watermark": watermark})
    reservations.mark_started(conn, site.scope, watermark)
    return watermark


def _find_attempts(conn: Connection, leases: Sequence[str]) -> list[AttemptKey]:
    found: list[AttemptKey] = []
    for some in sql.split_batches(leases):
        rows = conn.execute(BY_LEASE, {"leases": some})
        found += [(row.job_id, row.epoch) for row in rows]
    return found
