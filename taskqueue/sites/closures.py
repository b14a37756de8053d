"""Closures: bans of sites, and downtimes of sites and CEs. A closed scope gets test jobs only.

A ban closes from now on, a downtime of the severity OUTAGE from its begin to its end; one of the severity
WARNING is only shown. What is closed follows from the time of the decision alone, so that nobody has to
open or close anything. Names are folded, as in `scopes`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Row,
    bindparam,
    delete,
    insert,
    null,
    or_,
    select,
    text,
    type_coerce,
    union_all,
    update,
)

from cs_config.versions.tables import UtcTime
from requirements.resource import Location
from requirements.values import fold
from taskqueue.db import sql
from taskqueue.schema.tables import downtimes, site_bans
from taskqueue.sites import scopes

#: The only job type that closed places accept.
TEST: Final = "Test"


class Severity(StrEnum):
    """What a downtime does, with the words of GOCDB."""

    OUTAGE = "OUTAGE"  #: closes
    WARNING = "WARNING"  #: is only shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A ban of a site."""

    site: str
    reason: str
    author: str
    at: datetime
    until: datetime | None  #: None: until it is lifted


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """A downtime of a site or a CE."""

    downtime_id: int = 0  #: 0: not stored
    place: str  #: `Site` or `Site/CE`, in the configuration's spelling
    begins: datetime
    ends: datetime
    severity: Severity
    reason: str
    author: str
    at: datetime  #: when it was stored, or last changed
    source: str = ""  #: the feed that states it; empty: planned by hand
    source_id: str | None = None  #: its id there

    @property
    def key(self) -> tuple[str | None, str]:
        """What identifies it in its feed, where one downtime may concern several CEs."""
        return self.source_id, fold(self.place)

    def is_planned(self, now: datetime) -> bool:
        """Whether it will close its place."""
        return self.severity is Severity.OUTAGE and self.begins > now

    def is_closing(self, now: datetime) -> bool:
        """Whether it closes its place now."""
        return self.severity is Severity.OUTAGE and self.begins <= now < self.ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """A ban or a downtime that closes a place now."""

    place: str
    reason: str
    author: str  #: who closed it; of a downtime of a feed, the feed
    until: datetime | None
    is_downtime: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """What is closed at one moment, and what closes next."""

    closed: frozenset[str] = frozenset()  #: scopes
    begins: Mapping[str, datetime] = field(default_factory=dict)  #: of the next downtime, by scope

    def closes(self, place: Location) -> bool:
        """Whether the place is closed."""
        return not self.closed.isdisjoint(scopes.list_containing(place))

    def find_begin(self, place: Location) -> datetime | None:
        """When the place closes next; without its queue: or a part of it. None: nothing is planned."""
        if not self.begins:
            return None
        names: Iterable[str] = scopes.list_containing(place)
        if not place.queue:
            names = (*names, *scopes.list_inside(self.begins, place))
        return min((self.begins[name] for name in names if name in self.begins), default=None)


_NOW = bindparam("now", type_=UtcTime)
#: Condition on a ban: not expired.
IS_CURRENT = or_(site_bans.c.until.is_(None), site_bans.c.until > _NOW)
#: Condition on a downtime: not over.
IS_AHEAD = downtimes.c.ends > _NOW

SET_BAN = sql.insert_or_update(site_bans, "reason", "author", "at", "until")
LIFT_BAN = delete(site_bans).where(site_bans.c.site == bindparam("the_site"))
BANNED = select(site_bans).where(sql.is_listed(site_bans.c.site), IS_CURRENT)
CALENDAR = union_all(
    select(site_bans.c.site.label("scope"), type_coerce(null(), UtcTime).label("begins")).where(IS_CURRENT),
    select(downtimes.c.scope, downtimes.c.begins).where(downtimes.c.severity == Severity.OUTAGE, IS_AHEAD),
)
AT_SITES = (
    select(downtimes)
    .where(sql.is_listed(downtimes.c.site), IS_AHEAD)
    .order_by(downtimes.c.begins, downtimes.c.downtime_id)
)
OF_SOURCE = select(downtimes).where(downtimes.c.source == bindparam("the_source"))
BY_ID = select(downtimes).where(downtimes.c.downtime_id == bindparam("the_id"))
#: Those planned by hand for one place, time and severity.
SAME = select(downtimes).where(
    *(downtimes.c[name] == bindparam(f"the_{name}") for name in ("scope", "begins", "ends", "severity")),
    downtimes.c.source == "",
)
RESTATE = (
    update(downtimes)
    .where(downtimes.c.downtime_id == bindparam("the_id"))
    .values({each: bindparam(f"the_{each}") for each in ("reason", "author", "at")})
)
ADD = insert(downtimes)
ADD_ONE = ADD.returning(downtimes.c.downtime_id)
#: Advisory lock of PostgreSQL, which ends with the transaction; on SQLite the transaction is the lock.
LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended('downtimes', 0))")
REMOVE = delete(downtimes).where(sql.is_listed(downtimes.c.downtime_id))


def is_test(job_type: str) -> bool:
    """Whether jobs of this type may run at closed places."""
    return fold(job_type) == fold(TEST)


def set_ban(conn: Connection, new: Ban) -> None:
    """Ban a site; replaces an existing ban."""
    conn.execute(SET_BAN, {**asdict(new), "site": fold(new.site)})


def lift_ban(conn: Connection, site: str) -> bool:
    """Lift the ban of a site; False: there was none."""
    return bool(conn.execute(LIFT_BAN, {"the_site": fold(site)}).rowcount)


def read_bans(conn: Connection, sites: Collection[str], *, now: datetime) -> dict[str, Ban]:
    """Current bans of these sites, with the names as given."""
    rows = conn.execute(BANNED, {"ids": sorted(map(fold, sites)), "now": now})
    found = {row.site: Ban(**row._asdict()) for row in rows}
    return {site: replace(found[fold(site)], site=site) for site in sites if fold(site) in found}


def read_calendar(conn: Connection, *, now: datetime) -> Calendar:
    """What is closed now, and what closes next."""
    closed, begins = set[str](), dict[str, datetime]()
    for scope, begin in conn.execute(CALENDAR, {"now": now}):
        if begin is None or begin <= now:
            closed.add(scope)
        else:
            begins[scope] = min(begin, begins.get(scope, begin))
    return Calendar(closed=frozenset(closed), begins=begins)


def read_closures(conn: Connection, sites: Collection[str], *, now: datetime) -> list[Closure]:
    """What closes these sites or their CEs now, bans first; of the downtimes of a place the last to end."""
    banned = read_bans(conn, sites, now=now).values() if sites else ()
    closing = (each for each in list_downtimes(conn, sites, now=now) if each.is_closing(now))
    down = {fold(each.place): each for each in sorted(closing, key=lambda each: each.ends)}
    return [
        *(
            Closure(
                place=each.site, reason=each.reason, author=each.author, until=each.until, is_downtime=False
            )
            for each in banned
        ),
        *(
            Closure(
                place=each.place,
                reason=each.reason,
                author=each.source or each.author,
                until=each.ends,
                is_downtime=True,
            )
            for each in down.values()
        ),
    ]


def list_closed(conn: Connection, *, now: datetime) -> frozenset[str]:
    """The closed scopes."""
    return read_calendar(conn, now=now).closed


def list_downtimes(conn: Connection, sites: Collection[str], *, now: datetime) -> list[Downtime]:
    """The downtimes of these sites and their CEs that are not over, the earliest first."""
    some = sql.split_batches([fold(site) for site in sites])
    rows = (row for ids in some for row in conn.execute(AT_SITES, {"ids": ids, "now": now}))
    return sorted(map(_build_downtime, rows), key=lambda each: (each.begins, each.downtime_id))


def find_downtime(conn: Connection, downtime_id: int) -> Downtime | None:
    """A downtime; None: there is none."""
    row = conn.execute(BY_ID, {"the_id": downtime_id}).one_or_none()
    return None if row is None else _build_downtime(row)


def lock_downtimes(conn: Connection) -> None:
    """Let no other transaction change downtimes until the end of this one.

    So what two admins plan or import at once is counted and compared together. Claims do not wait for it.
    """
    if conn.dialect.name == "postgresql":
        conn.execute(LOCK)


def plan_downtime(conn: Connection, new: Downtime) -> Downtime:
    """Store a downtime by hand, and return it with its number.

    One of the same place, time and severity is the same downtime: it gets the reason, if that differs. So to
    remove it opens the place, also if a request was sent twice. To be called under `lock_downtimes`.
    """
    row = _to_row(new)
    same = {f"the_{name}": row[name] for name in ("scope", "begins", "ends", "severity")}
    known = conn.execute(SAME.order_by(downtimes.c.downtime_id).limit(1), same).one_or_none()
    if known is None:
        return replace(new, downtime_id=conn.execute(ADD_ONE, row).scalar_one())
    stored = _build_downtime(known)
    if stored.reason == new.reason:
        return stored
    changes = {f"the_{name}": row[name] for name in ("reason", "author", "at")}
    conn.execute(RESTATE, {**changes, "the_id": stored.downtime_id})
    return replace(new, downtime_id=stored.downtime_id, place=stored.place)


def add_downtimes(conn: Connection, new: Iterable[Downtime]) -> None:
    """Store downtimes."""
    if rows := [_to_row(each) for each in new]:
        conn.execute(ADD, rows)


def remove_downtimes(conn: Connection, ids: Collection[int]) -> None:
    """Delete downtimes; unknown ones are skipped."""
    conn.execute(REMOVE, {"ids": sorted(ids)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DowntimeChanges:
    """What a reading of a feed changed."""

    added: int
    changed: int
    removed: int


def replace_feed(
    conn: Connection,
    source: str,
    stated: Iterable[Downtime],
    sites: Collection[str],
    *,
    unreadable: Collection[str] = (),
) -> DowntimeChanges:
    """Store what a feed states now of some sites, of which what it states no more is deleted.

    What is stored of the entries with one of the ids `unreadable`, of which nobody knows what they state now,
    stays: a place that should be closed is not opened by a mistake in a feed.

    Those that are unchanged keep their id. To be called under `lock_downtimes`: without it two readings at
    once may store the same, which the next one mends.
    """
    here = set(map(fold, sites))
    rows = conn.execute(OF_SOURCE, {"the_source": source})
    stored = [_build_downtime(row) for row in rows if row.site in here]
    known = {each.key for each in stored}
    wanted = {each.key: each for each in stored if each.source_id in unreadable}
    wanted |= {each.key: each for each in stated}
    same = {
        each.key: each.downtime_id
        for each in stored
        if each.key in wanted and _content(each) == _content(wanted[each.key])
    }
    remove_downtimes(conn, {each.downtime_id for each in stored}.difference(same.values()))
    add_downtimes(conn, [each for key, each in wanted.items() if key not in same])
    return DowntimeChanges(
        added=len(wanted.keys() - known),
        changed=len(wanted.keys() & known - same.keys()),
        removed=len(known - wanted.keys()),
    )


def _content(downtime: Downtime) -> object:
    return downtime.begins, downtime.ends, downtime.severity, downtime.reason, downtime.place


def _to_row(downtime: Downtime) -> dict[str, Any]:
    row = asdict(downtime)
    del row["downtime_id"]
    return {**row, "scope": fold(downtime.place), "site": fold(scopes.parse_site(downtime.place))}


def _build_downtime(row: Row[Any]) -> Downtime:
    stored = row._asdict()
    del stored["scope"], stored["site"]
    return Downtime(**stored | {"severity": Severity(row.severity)})
