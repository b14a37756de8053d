"""Reservations: matches that a site's own counts do not contain yet; and advertisements, which contain them.

A reservation ends when an advertisement acknowledges it, when its pilot closes the attempt (finish, release),
or when its lease ends before it was started. An attempt that was taken away may still be there until its
pilot notices: if it was started, and then rescheduled, killed or lost, it stays reserved until an
advertisement that was counted after its start, else until the first advertisement after the end of its lease,
when its pilot gives it up. The attempt's state is read from `attempts`; only advertisements write here.

No time ends the reservation of a started attempt sooner, not even of a lost one: the reported end of its
pilot may be wrong, local jobs of a gateway that is away run on, and so do pilots with times of their own
(`Attempt.times`); and it is resumed when its pilot comes back. Such a reservation takes no room for long:
without a fresh advertisement none counts.

The site fetches a watermark, counts, and advertises as of the watermark. Every attempt whose start was
recorded when the watermark was issued is in the count, or has left the site: a job is there before its start
is reported. No clocks are compared. An advertisement without a watermark counts as taken after the previous
advertisement.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from requirements.errors import InvalidRequest, Problem
from requirements.values import Value, fold
from taskqueue.db import sql
from taskqueue.schema.tables import attempts, jobs, scope_rules
from taskqueue.schema.tables import reservations as table
from taskqueue.sites import scopes
from taskqueue.sites.occupancy import TAKEN_AWAY, WAS_ON_ITS_WAY
from taskqueue.sites.scopes import SCOPES_OF_SITE, SET_WATERMARK, Scope

log = logging.getLogger(__name__)

#: Job id and epoch of an attempt.
AttemptKey = tuple[int, int]

_BY_ITS_PILOT = ("finished", "released")

_THE_SCOPE = table.c.scope == bindparam("the_scope")
_ITS_ATTEMPT = and_(attempts.c.job_id == table.c.job_id, attempts.c.epoch == table.c.epoch)
#: The reverse of what the triggers of `attempts` return to a throttle, which the migrations state.
_MAY_BE_THERE: ColumnElement[bool] = or_(
    attempts.c.closed_at.is_(None),
    attempts.c.closed_as == TAKEN_AWAY,
    and_(attempts.c.started_at.is_not(None), attempts.c.closed_as.not_in(_BY_ITS_PILOT)),
)
_IS_GIVEN_UP = and_(WAS_ON_ITS_WAY, attempts.c.lease_expires_at < bindparam("now"))

CREATE = insert(table)
COUNT = (
    select(table.c.scope, func.count().label("reserved"))
    .join(attempts, _ITS_ATTEMPT)
    .where(sql.is_listed(table.c.scope), table.c.seen.is_(False), _MAY_BE_THERE)
    .group_by(table.c.scope)
)
COUNT_ROWS = select(func.count()).select_from(table).where(_THE_SCOPE, table.c.seen.is_(False))
LIST = (
    select(table.c.job_id, table.c.epoch, attempts.c.opened_at, attempts.c.started_at)
    .join(attempts, _ITS_ATTEMPT)
    .where(_THE_SCOPE, table.c.seen.is_(False), _MAY_BE_THERE)
    .order_by(table.c.job_id)
    .limit(bindparam("most"))
)
MARK_STARTED = (
    update(table)
    .where(
        table.c.scope.in_(SCOPES_OF_SITE),
        table.c.begun_by.is_(None),
        exists().where(_ITS_ATTEMPT, attempts.c.started_at.is_not(None)),
    )
    .values(begun_by=bindparam("the_watermark"))
)
ACKNOWLEDGE = delete(table).where(_THE_SCOPE, table.c.begun_by <= bindparam("the_as_of"))
FORGET_ENDED = delete(table).where(_THE_SCOPE, ~exists().where(_ITS_ATTEMPT, _MAY_BE_THERE))
FORGET_GIVEN_UP = delete(table).where(_THE_SCOPE, exists().where(_ITS_ATTEMPT, _IS_GIVEN_UP))
CLEAR_SEEN = update(table).where(_THE_SCOPE, table.c.seen).values(seen=False)
REMOVE = (
    delete(table)
    .where(_THE_SCOPE, tuple_(table.c.job_id, table.c.epoch).in_(sql.KEYS))
    .returning(table.c.seen)
)
SET_SEEN = (
    update(table).where(_THE_SCOPE, tuple_(table.c.job_id, table.c.epoch).in_(sql.KEYS)).values(seen=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A match that counts at a scope in addition to the site's own counts."""

    job_id: int
    epoch: int
    opened_at: datetime
    started_at: datetime | None


def create_reservations(conn: Connection, reserved: Iterable[tuple[str, AttemptKey]]) -> None:
    """Insert reservations; in the transaction of the claim, under the lock of the scopes."""
    rows = [{"scope": fold(scope), "job_id": job_id, "epoch": epoch} for scope, (job_id, epoch) in reserved]
    if rows:
        conn.execute(CREATE, rows)


def count_reservations(conn: Connection, scopes: Collection[str]) -> Mapping[str, int]:
    """Number of reservations of each scope that still count; scopes without any are left out."""
    found = {row.scope: row.reserved for row in conn.execute(COUNT, {"ids": sorted(map(fold, scopes))})}
    return {scope: found[fold(scope)] for scope in scopes if fold(scope) in found}


def list_reservations(
    conn: Connection, scope: str, most: int, *, vos: Collection[str] | None = None
) -> list[Reservation]:
    """The first reservations at a scope, for jobs of these VOs (None: of all)."""
    statement = LIST
    if vos is not None:
        statement = LIST.where(table.c.job_id.in_(select(jobs.c.job_id).where(jobs.c.vo.in_(sorted(vos)))))
    rows = conn.execute(statement, {"the_scope": fold(scope), "most": most})
    return [Reservation(**row._asdict()) for row in rows]


def remove_reservations(conn: Connection, scope: str, ended: Collection[AttemptKey]) -> int:
    """Delete the reservations of ended attempts; the number of those that counted. Under the scope's lock."""
    rows = sql.read_batches(conn, REMOVE, ended, the_scope=fold(scope))
    return sum(not row.seen for row in rows)


def recount(conn: Connection, scope: str) -> int:
    """Delete the reservations of ended attempts; the number of the others. Under the scope's lock."""
    conn.execute(FORGET_ENDED, {"the_scope": scope})
    return conn.execute(COUNT_ROWS, {"the_scope": scope}).scalar_one()


def mark_started(conn: Connection, site: str, watermark: int) -> None:
    """Store the watermark with the attempts at a site whose start is newly recorded."""
    conn.execute(MARK_STARTED, {"the_site": site, "the_watermark": watermark})


def acknowledge(
    conn: Connection, scope: str, *, as_of: int, seen: Sequence[AttemptKey], now: datetime
) -> None:
    """Delete reservations contained in a new advertisement or given up; suspend those that it only lists.

    A listed attempt may be missing in an advertisement with a later watermark that was counted earlier; one
    whose start was recorded by the watermark cannot.
    """
    conn.execute(ACKNOWLEDGE, {"the_scope": scope, "the_as_of": as_of})
    conn.execute(FORGET_GIVEN_UP, {"the_scope": scope, "now": now})
    conn.execute(CLEAR_SEEN, {"the_scope": scope})
    for some in sql.split_batches(seen):
        conn.execute(SET_SEEN, {"the_scope": scope, "ids": some})


#: The throttle's counter, see `scope_rules`.
SET_RESERVED = (
    update(scope_rules)
    .where(
        scope_rules.c.scope == bindparam("the_scope"), scope_rules.c.kind == "throttle", scope_rules.c.counted
    )
    .values(n=bindparam("reserved"))
)
BY_LEASE = select(attempts.c.job_id, attempts.c.epoch).where(sql.is_listed(attempts.c.lease))


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
    return _next_watermark(conn, scopes.lock_scopes(conn, [site])[fold(site)])


def accept_advertisement(conn: Connection, scope: str, new: Advertisement, *, now: datetime) -> bool:
    """Store an advertisement as the state of a scope; False: a later one is already stored."""
    scope = fold(scope)
    locked = scopes.lock_scopes(conn, scopes.list_enclosing(scope))
    site, current = locked[scopes.parse_site(scope)], locked[scope]
    if new.as_of is not None and not 0 < new.as_of <= site.watermark:
        message = f"{new.as_of} is not a watermark of {site.scope}; the last one is {site.watermark}"
        raise InvalidRequest([Problem(path="as_of", message=message)])
    if new.as_of is not None and new.as_of < current.as_of:
        log.warning("%s: advertisement as of %d ignored, %d is known", scope, new.as_of, current.as_of)
        return False
    # Without a watermark the advertisement contains what had started by the previous one, and advertisements
    # with watermarks fetched before this one will be rejected.
    contained = current.as_of if new.as_of is None else new.as_of
    as_of = _next_watermark(conn, site) if new.as_of is None else new.as_of
    found = sql.read_batches(conn, BY_LEASE, new.leases_seen)
    seen = sorted({*new.attempts_seen, *((row.job_id, row.epoch) for row in found)})
    acknowledge(conn, scope, as_of=contained, seen=seen, now=now)
    conn.execute(SET_RESERVED, {"the_scope": scope, "reserved": recount(conn, scope)})
    scopes.store_state(conn, scope, new.attributes, as_of=as_of, taken_at=new.taken_at, now=now)
    return True


def _next_watermark(conn: Connection, site: Scope) -> int:
    """Under the lock of the site: starts visible to this statement were recorded before it is issued."""
    watermark = site.watermark + 1
    conn.execute(SET_WATERMARK, {"the_scope": site.scope, "the_watermark": watermark})
    mark_started(conn, site.scope, watermark)
    return watermark
