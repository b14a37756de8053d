"""Stored token buckets of matching delays, and of running limits with a ramp.

Their time is the database's: matchers on several hosts have different clocks, and each would fill the
buckets by its own.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from taskqueue.db import sql
from taskqueue.schema.tables import matching_delays as table
from taskqueue.sites.scope_rules import RuleKind

#: Folded scope, kind of rule (a delay, or a limit with a ramp), attribute, folded value, VO (empty: all VOs).
BucketKey = tuple[str, RuleKind, str, str, str]
_KEY = ("scope", "kind", "attribute", "value", "vo")

READ = select(table).where(table.c.scope.in_(sql.IDS))
STORE = sql.insert_or_update(table, "tokens", "at")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLevel:
    """Fill level of a bucket at a time."""

    tokens: float
    at: datetime


def read_levels(conn: Connection, scopes: Collection[str]) -> Mapping[BucketKey, BucketLevel]:
    """Stored buckets of scopes."""
    rows = conn.execute(READ, {"ids": sorted(scopes)})
    return {
        (row.scope, RuleKind(row.kind), row.attribute, row.value, row.vo): BucketLevel(
            tokens=row.tokens, at=row.at
        )
        for row in rows
    }


def store_levels(conn: Connection, levels: Iterable[tuple[BucketKey, BucketLevel]]) -> None:
    """Store bucket levels, under the lock of their scopes."""
    rows = [
        dict(zip(_KEY, key, strict=True)) | {"tokens": level.tokens, "at": level.at} for key, level in levels
    ]
    if rows:
        conn.execute(STORE.to_statement(conn), rows)
