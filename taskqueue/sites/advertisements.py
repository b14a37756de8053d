"""Advertisements: a site states its number of jobs, and which of our matches that number contains.

The site fetches a watermark, counts, and advertises as of the watermark. Every attempt whose start was
recorded when the watermark was issued is in the count, or has left the site: a job is there before its start
is reported. No clocks are compared. An advertisement without a watermark counts as taken after the previous
advertisement.
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
    """Statement of a site, CE or queue about its state."""

    attributes: Mapping[str, Value]  #: counters, limits, and any other attributes used in its expressions
    as_of: int | None = None  #: the watermark that was fetched before counting
    leases_seen: Sequence[str] = ()  #: attempts contained in the counts
    attempts_seen: Sequence[AttemptKey] = field(default=())  #: the same, by job and epoch
    taken_at: str | None = None  #: for display


def create_watermark(conn: Connection, site: str) -> int:
    """Issue a new watermark of a site, higher than all before."""
    return _next_watermark(conn, scopes.lock_scopes(conn, [site])[site])


def accept_advertisement(conn: Connection, scope: str, new: Advertisement, *, now: datetime) -> bool:
    """Store an advertisement as the state of a scope; False: a later one is already stored.

    Raises:
        InvalidRequest: Its watermark was never issued.
    """
    locked = scopes.lock_scopes(conn, scopes.list_enclosing(scope))
    site, current = locked[scopes.parse_site(scope)], locked[scope]
    if new.as_of is not None and not 0 < new.as_of <= site.watermark:
        message = f"{new.as_of} is no watermark of {site.scope}; the last one is {site.watermark}"
        raise InvalidRequest([Problem(path="as_of", message=message)])
    if new.as_of is not None and new.as_of < current.as_of:
        log.warning("%s: advertisement as of %d ignored, %d is known", scope, new.as_of, current.as_of)
        return False
    # Without a watermark the advertisement contains what had started by the previous one, and advertisements
    # with watermarks fetched before this one will be rejected.
    contained = current.as_of if new.as_of is None else new.as_of
    as_of = _next_watermark(conn, site) if new.as_of is None else new.as_of
    seen = sorted({*new.attempts_seen, *_find_attempts(conn, new.leases_seen)})
    reservations.acknowledge(conn, scope, as_of=contained, seen=seen)
    scopes.store_state(conn, scope, new.attributes, as_of=as_of, taken_at=new.taken_at, now=now)
    return True


def _next_watermark(conn: Connection, site: Scope) -> int:
    """Under the lock of the site: starts visible to this statement were recorded before it is issued."""
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
