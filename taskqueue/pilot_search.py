"""Finding pilots by what they are, in pages."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, bindparam, false, or_, select

from taskqueue import pilots, whose
from taskqueue.pilots import ALL, Pilot
from taskqueue.states import PilotStatus
from taskqueue.tables import pilots as table
from taskqueue.whose import Whose

CHANGED_AT = select(table.c.updated_at).where(table.c.stamp == bindparam("stamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which pilots; None asks nothing, an empty set is met by no pilot."""

    vos: Collection[str] | None = None
    sites: Collection[str] | None = None
    statuses: Collection[PilotStatus] | None = None
    submitted_by: str | None = None
    since: datetime | None = None  #: changed then or later
    any_of: tuple[Whose, ...] = ()  #: one of these besides, if there are any

    def clauses(self) -> list[ColumnElement[bool]]:
        """It as conditions on the table of pilots."""
        sets = {table.c.vo: self.vos, table.c.status: self.statuses}
        found: list[ColumnElement[bool]] = [
            column.in_(sorted(allowed)) for column, allowed in sets.items() if allowed is not None
        ]
        if self.sites is not None:
            found.append(_may_be_at(self.sites))
        if self.submitted_by is not None:
            found.append(table.c.submitted_by == self.submitted_by)
        if self.since is not None:
            found.append(table.c.updated_at >= self.since)
        return found + whose.clauses(self.any_of, vo=table.c.vo, at=_may_be_at)


def find(conn: Connection, which: Filter, *, limit: int, after: str = "") -> list[Pilot]:
    """A page of pilots, by stamp."""
    statement = ALL.where(table.c.stamp > after, *which.clauses())
    rows = conn.execute(statement.order_by(table.c.stamp).limit(limit)).mappings()
    return [pilots.from_row(dict(row)) for row in rows]


def latest(conn: Connection, which: Filter, *, limit: int, after: str | None = None) -> list[Pilot]:
    """A page of pilots, those whose status changed last first.

    Args:
        conn: In any transaction.
        which: Which pilots.
        limit: How many at most.
        after: Stamp of the last one of the page before; one that is gone is the same as none.
    """
    statement = ALL.where(*which.clauses())
    known = None if after is None else conn.execute(CHANGED_AT, {"stamp": after}).scalar_one_or_none()
    if known is not None:
        later = and_(table.c.updated_at == known, table.c.stamp > after)
        statement = statement.where(or_(table.c.updated_at < known, later))
    rows = conn.execute(statement.order_by(table.c.updated_at.desc(), table.c.stamp).limit(limit)).mappings()
    return [pilots.from_row(dict(row)) for row in rows]


def _may_be_at(sites: Collection[str]) -> ColumnElement[bool]:
    """At one of the sites, or still on its way, perhaps there: the landings are a list in JSON."""
    on_its_way = [
        table.c.landings.contains(json.dumps(f"{site}/")[:-1], autoescape=True) for site in sorted(sites)
    ]
    return or_(table.c.site.in_(sorted(sites)), (table.c.site == "") & or_(false(), *on_its_way))
