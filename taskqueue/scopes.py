"""The lockable rows of sites, CEs and queues, and what a site says of its state.

All that decides what is matched at a scope, or changes what the decision rests on, happens under the
lock of its row. Locks are taken by one statement, in the order of names.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, Select, bindparam, select, update
from sqlalchemy.sql.dml import Insert

from requirements.values import Value
from taskqueue.tables import scopes as table
from taskqueue.upserts import Twins, Upsert

_NAMES: BindParameter[str] = bindparam("names", expanding=True)


def _keep(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing()


NEW = Twins(table, _keep)
READ: Select[Any] = select(table).where(table.c.scope.in_(_NAMES))
LOCK = READ.order_by(table.c.scope).with_for_update()
OF_SITE = select(table.c.scope).where(table.c.site == bindparam("the_site"))
STORE = (
    update(table)
    .where(table.c.scope == bindparam("the_scope"))
    .values(
        as_of=bindparam("the_as_of"),
        advertisement=bindparam("the_advertisement"),
        advertised_at=bindparam("now"),
        taken_at=bindparam("the_taken_at"),
    )
)
GIVE = (
    update(table).where(table.c.scope == bindparam("the_scope")).values(watermark=bindparam("the_watermark"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A site, CE or queue, with what it advertised last."""

    scope: str  #: `Site`, `Site/CE` or `Site/CE/Queue`
    watermark: int = 0  #: of a site: the last that was given out
    as_of: int = 0  #: the watermark that the advertisement was counted after
    advertised: Mapping[str, Value] | None = None  #: None: nothing yet
    advertised_at: datetime | None = None
    taken_at: str | None = None  #: as the site says, for people


def read(conn: Connection, names: Collection[str]) -> dict[str, Scope]:
    """The scopes of these names; one without a row has advertised nothing."""
    found = {name: Scope(scope=name) for name in names}
    if names:
        found |= {row.scope: _scope(row) for row in conn.execute(READ, {"names": sorted(names)})}
    return found


def lock(conn: Connection, names: Collection[str]) -> dict[str, Scope]:
    """The same, locked until the end of the transaction; rows that are missing are made."""
    ordered = sorted(set(names))
    rows = conn.execute(LOCK, {"names": ordered}).all()
    if len(rows) < len(ordered):
        conn.execute(NEW.of(conn), [{"scope": name, "site": site_of(name)} for name in ordered])
        rows = conn.execute(LOCK, {"names": ordered}).all()
    return {row.scope: _scope(row) for row in rows}


def site_of(scope: str) -> str:
    """The site that a scope belongs to."""
    return scope.partition("/")[0]


def line(scope: str) -> tuple[str, ...]:
    """The scope and all above it, the site first."""
    parts = scope.split("/")
    return tuple("/".join(parts[: end + 1]) for end in range(len(parts)))


def store(
    conn: Connection,
    scope: str,
    advertised: Mapping[str, Value],
    *,
    as_of: int,
    taken_at: str | None,
    now: datetime,
) -> None:
    """Replace the advertisement of a locked scope."""
    values = {
        "the_scope": scope,
        "the_as_of": as_of,
        "the_advertisement": json.dumps(dict(advertised)),
        "the_taken_at": taken_at,
        "now": now,
    }
    conn.execute(STORE, values)


def _scope(row: Row[Any]) -> Scope:
    said = None if row.advertisement is None else json.loads(row.advertisement)
    return Scope(
        scope=row.scope,
        watermark=row.watermark,
        as_of=row.as_of,
        advertised=None if said is None else {name: _value(value) for name, value in said.items()},
        advertised_at=row.advertised_at,
        taken_at=row.taken_at,
    )


def _value(stored: Any) -> Value:
    return tuple(stored) if isinstance(stored, list) else stored
