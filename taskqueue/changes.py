"""The feed of what a matcher has to look at again: never of jobs, only of what is shared by many.

A growing number is no safe cursor on PostgreSQL: a transaction that took an early number may commit
late, after a reader has passed it. So every visible row is applied at once, and only the cursor waits,
for the oldest transaction that is still running. A row may therefore come more than once: it says
"look again", not "add one".
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, cast, func, insert, literal, select
from sqlalchemy.types import Text

from taskqueue.tables import changes

TASK_QUEUE = "task_queue"
MAPPING = "mapping"
PRIORITY = "priority"

# `xid8` counts on beyond 32 bits; it converts to a number by way of its text.
_OUR_XID = cast(cast(func.pg_current_xact_id(), Text), BigInteger)
_HORIZON = cast(cast(func.pg_snapshot_xmin(func.pg_current_snapshot()), Text), BigInteger)

_NEW: Mapping[str, Any] = {"kind": bindparam("kind"), "key": bindparam("key"), "at": bindparam("at")}
APPEND = {
    "postgresql": insert(changes).values(xid=_OUR_XID, **_NEW),
    # One writer at a time: rows become visible in the order of their numbers.
    "sqlite": insert(changes).values(xid=literal(0), **_NEW),
}

START = {
    "postgresql": select(_HORIZON),
    "sqlite": select(func.coalesce(func.max(changes.c.change_id), 0)),
}
READ = {
    "postgresql": select(changes.c.kind, changes.c.key)
    .distinct()
    .where(changes.c.xid >= bindparam("position")),
    "sqlite": select(changes.c.kind, changes.c.key)
    .distinct()
    .where(changes.c.change_id > bindparam("position")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to look at again."""

    kind: str  #: TASK_QUEUE, MAPPING or PRIORITY
    key: str  #: the id of the task queue; the VO of the mapping; the group whose task queues weigh otherwise


def append(conn: Connection, kind: str, keys: Collection[str], *, now: datetime) -> None:
    """Tell the matchers, in the transaction of the change itself."""
    if keys:
        rows = [{"kind": kind, "key": key, "at": now} for key in sorted(keys)]
        conn.execute(APPEND[conn.dialect.name], rows)


def position(conn: Connection) -> int:
    """Where a reader stands that loads everything after this call, in this or a later transaction."""
    return int(conn.scalar(START[conn.dialect.name]) or 0)


def read(conn: Connection, since: int) -> tuple[Sequence[Change], int]:
    """What has changed since a position, and the position to go on from."""
    # The position is taken first: what commits in between is read now and once more later.
    following = position(conn)
    rows = conn.execute(READ[conn.dialect.name], {"position": since}).all()
    return [Change(kind=row.kind, key=row.key) for row in rows], following
