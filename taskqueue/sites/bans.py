"""Bans of sites, which then get test jobs only."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, or_, select

from requirements.values import fold
from taskqueue.db import sql
from taskqueue.schema.tables import site_bans as table

SET_BAN = sql.insert_or_update(table, "reason", "author", "at", "until")
#: Condition on a ban: not expired.
IS_CURRENT = or_(table.c.until.is_(None), table.c.until > bindparam("now"))

LIFT_BAN = delete(table).where(table.c.site == bindparam("the_site"))
BANNED = select(table).where(table.c.site.in_(sql.IDS), IS_CURRENT)
CURRENT = select(table.c.site).where(IS_CURRENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A ban of a site."""

    site: str
    reason: str
    author: str
    at: datetime
    until: datetime | None  #: None: until it is lifted


def set_ban(conn: Connection, new: Ban) -> None:
    """Ban a site; replaces an existing ban."""
    conn.execute(SET_BAN.to_statement(conn), {**asdict(new), "site": fold(new.site)})


def lift_ban(conn: Connection, site: str) -> bool:
    """Lift the ban of a site; False: there was none."""
    return bool(conn.execute(LIFT_BAN, {"the_site": fold(site)}).rowcount)


def read_bans(conn: Connection, sites: Collection[str], *, now: datetime) -> dict[str, Ban]:
    """Current bans of these sites, with the names as given."""
    rows = conn.execute(BANNED, {"ids": sorted(map(fold, sites)), "now": now})
    found = {row.site: Ban(**row._asdict()) for row in rows}
    return {site: replace(found[fold(site)], site=site) for site in sites if fold(site) in found}


def list_banned(conn: Connection, *, now: datetime) -> frozenset[str]:
    """The folded names of all banned sites."""
    return frozenset(conn.execute(CURRENT, {"now": now}).scalars())
