"""Scopes: lockable rows of sites, CEs and queues, with their last advertisement.

Every decision about matching at a scope, and every change of its inputs, happens under the lock of its row.
Locks are taken by one statement, in the order of names. Names are folded in all tables, so that limits hold
however a site is spelled, also while processes with two spellings claim.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, func, literal_column, select, update

from cs_config.options.place_limits import ALL_SITES
from requirements.resource import Location
from requirements.values import Value, fold
from taskqueue.db import sql
from taskqueue.schema.tables import scopes as table

#: The folded scope of limits on all sites together; it has no advertisement.
GRID: Final = fold(ALL_SITES)

INSERT = sql.insert_or_skip(table)
READ: Select[Any] = select(table).where(sql.is_listed(table.c.scope))
LOCK = READ.order_by(table.c.scope).with_for_update()
ADVERTISED = select(table.c.scope, table.c.advertised_at).where(table.c.advertised_at.is_not(None))
ADVERTISED_SINCE: Select[Any] = (
    select(table)
    .where(table.c.advertised_at >= bindparam("since", type_=table.c.advertised_at.type))
    .order_by(table.c.scope)
)
LIMIT_WAIT = select(func.set_config("lock_timeout", bindparam("most"), literal_column("true")))
ADVERTISED_AT_SITES: Select[Any] = (
    select(table)
    .where(sql.is_listed(table.c.site), table.c.advertisement.is_not(None))
    .order_by(table.c.scope)
)
SCOPES_OF_SITE = select(table.c.scope).where(table.c.site == bindparam("the_site"))
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
SET_WATERMARK = (
    update(table).where(table.c.scope == bindparam("the_scope")).values(watermark=bindparam("the_watermark"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A site, CE or queue, with its last advertisement."""

    scope: str  #: `Site`, `Site/CE`, `Site/CE/Queue` or ALL_SITES, as requested; folded if locked
    watermark: int = 0  #: of a site: the last one issued
    as_of: int = 0  #: the watermark up to which the advertisement counts
    advertised: Mapping[str, Value] | None = None  #: None: nothing yet
    advertised_at: datetime | None = None
    taken_at: str | None = None  #: the site's own time; for display


def read_scopes(conn: Connection, names: Collection[str]) -> dict[str, Scope]:
    """The scopes with these names, as given; one without a row has no advertisement."""
    rows = conn.execute(READ, {"ids": sorted(map(fold, names))}) if names else ()
    found = {row.scope: build_scope(row) for row in rows}
    return {name: replace(found.get(fold(name), Scope(scope=name)), scope=name) for name in names}


def read_advertised(conn: Connection, sites: Collection[str]) -> list[Scope]:
    """The scopes at these sites that have an advertisement, with folded names, the site before its CEs."""
    some = sql.split_batches(sorted(map(fold, sites)))
    return [build_scope(row) for ids in some for row in conn.execute(ADVERTISED_AT_SITES, {"ids": ids})]


def list_advertised(conn: Connection) -> Mapping[str, datetime]:
    """When each scope that ever advertised did so last."""
    return {row.scope: row.advertised_at for row in conn.execute(ADVERTISED)}


def list_advertised_since(conn: Connection, since: datetime) -> list[Scope]:
    """The scopes whose last advertisement came at that time or later, with folded names."""
    return [build_scope(row) for row in conn.execute(ADVERTISED_SINCE, {"since": since})]


def lock_scopes(conn: Connection, names: Collection[str]) -> dict[str, Scope]:
    """The scopes by folded name, locked until the end of the transaction; missing rows are inserted."""
    ordered = sorted(set(map(fold, names)))
    rows = conn.execute(LOCK, {"ids": ordered}).all()
    if len(rows) < len(ordered):
        conn.execute(INSERT, [{"scope": name, "site": parse_site(name)} for name in ordered])
        rows = conn.execute(LOCK, {"ids": ordered}).all()
    return {row.scope: build_scope(row) for row in rows}


def limit_wait(conn: Connection, *, milliseconds: int) -> None:
    """Wait for locks only shortly in this transaction: an OperationalError afterwards."""
    if conn.dialect.name == "postgresql":
        conn.execute(LIMIT_WAIT, {"most": f"{milliseconds}ms"})


def parse_site(scope: str) -> str:
    """The site that a scope belongs to."""
    return scope.partition("/")[0]


def list_enclosing(scope: str) -> tuple[str, ...]:
    """The scope and all enclosing ones, the site first."""
    parts = scope.split("/")
    return tuple("/".join(parts[: end + 1]) for end in range(len(parts)))


@lru_cache(maxsize=10_000)
def list_containing(place: Location) -> tuple[str, ...]:
    """The folded scopes that contain a place, each once, all sites together first."""
    name = fold("/".join(part for part in (place.site, place.ce, place.queue) if part))
    enclosing = list_enclosing(name) if place.site else ()
    return tuple(dict.fromkeys((GRID, *enclosing)))


def list_inside(names: Iterable[str], place: Location) -> Iterator[str]:
    """Those of these scopes that are inside a place that is stated without its queue; all sites are not.

    Without a site a place contains every site.
    """
    prefix = f"{list_containing(place)[-1]}/" if place.site else ""
    return (name for name in names if (folded := fold(name)) != GRID and folded.startswith(prefix))


def store_state(
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
        "the_scope": fold(scope),
        "the_as_of": as_of,
        "the_advertisement": json.dumps(dict(advertised)),
        "the_taken_at": taken_at,
        "now": now,
    }
    conn.execute(STORE, values)


def build_scope(row: Row[Any]) -> Scope:
    """The scope of a row of the table."""
    advertised: dict[str, Value] | None = None
    if row.advertisement is not None:
        stored = json.loads(row.advertisement).items()
        advertised = {name: tuple(value) if isinstance(value, list) else value for name, value in stored}
    return Scope(
        scope=row.scope,
        watermark=row.watermark,
        as_of=row.as_of,
        advertised=advertised,
        advertised_at=row.advertised_at,
        taken_at=row.taken_at,
    )
