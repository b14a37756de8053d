"""Lockable rows of sites, CEs and queues, with their last advertisement.

Every decision about matching at a scope, and every change of its inputs, happens under the lock of its row.
Locks are taken by one statement, in the order of names.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, exists, func, literal_column, select, update

from requirements.values import Value
from taskqueue.db import sql
from taskqueue.schema.tables import scope_rules
from taskqueue.schema.tables import scopes as table

INSERT = sql.insert_or_skip(table)
READ: Select[Any] = select(table).where(table.c.scope.in_(sql.IDS))
LOCK = READ.order_by(table.c.scope).with_for_update()
_HAS_RULES = exists().where(scope_rules.c.scope == table.c.scope)


def _select_with_rules(*, wait: bool) -> Select[Any]:
    """All scopes with rules among the names; columns other than `name` are null if another has the lock."""
    locked = LOCK.where(_HAS_RULES).with_for_update(skip_locked=not wait).cte("locked")
    names = (
        select(table.c.scope.label("name")).where(table.c.scope.in_(sql.IDS), _HAS_RULES).subquery("names")
    )
    return select(names, locked).select_from(names.outerjoin(locked, locked.c.scope == names.c.name))


LIMIT_WAIT = select(func.set_config("lock_timeout", bindparam("most"), literal_column("true")))
LOCK_FREE = _select_with_rules(wait=False)
LOCK_ALL = _select_with_rules(wait=True)
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

    scope: str  #: `Site`, `Site/CE` or `Site/CE/Queue`
    watermark: int = 0  #: of a site: the last one issued
    as_of: int = 0  #: the watermark up to which the advertisement counts
    advertised: Mapping[str, Value] | None = None  #: None: nothing yet
    advertised_at: datetime | None = None
    taken_at: str | None = None  #: the site's own time; for display


def read_scopes(conn: Connection, names: Collection[str]) -> dict[str, Scope]:
    """The scopes with these names; one without a row has no advertisement."""
    found = {name: Scope(scope=name) for name in names}
    if names:
        found |= {row.scope: _scope_from_row(row) for row in conn.execute(READ, {"ids": sorted(names)})}
    return found


def lock_scopes(conn: Connection, names: Collection[str]) -> dict[str, Scope]:
    """The scopes, locked until the end of the transaction; missing rows are inserted."""
    ordered = sorted(set(names))
    rows = conn.execute(LOCK, {"ids": ordered}).all()
    if len(rows) < len(ordered):
        conn.execute(
            INSERT.to_statement(conn), [{"scope": name, "site": parse_site(name)} for name in ordered]
        )
        rows = conn.execute(LOCK, {"ids": ordered}).all()
    return {row.scope: _scope_from_row(row) for row in rows}


def limit_wait(conn: Connection, *, milliseconds: int) -> None:
    """Wait for locks only shortly in this transaction: an OperationalError afterwards."""
    if conn.dialect.name == "postgresql":
        conn.execute(LIMIT_WAIT, {"most": f"{milliseconds}ms"})


def lock_with_rules(
    conn: Connection, names: Collection[str], *, wait: bool
) -> tuple[dict[str, Scope], frozenset[str]]:
    """Lock the scopes that have rules; with the names of those that another transaction has locked.

    The contents are those of the moment of locking; what else a decision reads has to be read afterwards.
    `wait`: until all are free, or an OperationalError after the lock time-out.
    """
    rows = conn.execute(LOCK_ALL if wait else LOCK_FREE, {"ids": sorted(set(names))}).all()
    locked = {row.name: _scope_from_row(row) for row in rows if row.scope is not None}
    return locked, frozenset(row.name for row in rows if row.scope is None)


def parse_site(scope: str) -> str:
    """The site that a scope belongs to."""
    return scope.partition("/")[0]


def list_enclosing(scope: str) -> tuple[str, ...]:
    """The scope and all enclosing ones, the site first."""
    parts = scope.split("/")
    return tuple("/".join(parts[: end + 1]) for end in range(len(parts)))


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
        "the_scope": scope,
        "the_as_of": as_of,
        "the_advertisement": json.dumps(dict(advertised)),
        "the_taken_at": taken_at,
        "now": now,
    }
    conn.execute(STORE, values)


def _scope_from_row(row: Row[Any]) -> Scope:
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
