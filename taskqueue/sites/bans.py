"""Bans of sites, which then get test jobs only."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, or_, select

from taskqueue.db import sql
from taskqueue.schema.tables import site_bans as table

SET_BAN = sql.insert_or_update(table, "reason", "author", "at", "until")
#: Condition on a ban: not expired.
IS_CURRENT = or_(table.c.until.is_(None), table.c.until > bindparam("now"))

LIFT_BAN = delete(table).where(table.c.site == bindparam("the_site"))
BANNED = select(table).where(table.c.site.in_(sql.IDS), IS_CURRENT)
CURRENT = select(table).where(IS_CURRENT).order_by(table.c.site)


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
    conn.execute(SET_BAN.to_statement(conn), asdict(new))


def lift_ban(conn: Connection, site: str) -> bool:
    """Lift the ban of a site; False: there was none."""
    return bool(conn.execute(LIFT_BAN, {"the_site": site}).rowcount)


def read_bans(conn: Connection, sites: Collection[str], *, now: datetime) -> dict[str, Ban]:
    """Current bans of these sites."""
    rows = conn.execute(BANNED, {"ids": sorted(sites), "now": now})
    return {row.site: Ban(**row._asdict()) for row in rows}


def list_bans(conn: Connection, *, now: datetime) -> list[Ban]:
    """All current bans, by site."""
    return [Ban(**row._asdict()) for row in conn.execute(CURRENT, {"now": now})]
