"""Change feed for matchers: task queues, mappings and weights to reload; never single jobs.

A growing number is no safe cursor on PostgreSQL: a transaction that took an early number may commit late,
after a reader has passed it. So a position is a snapshot with its running transactions: the next read
returns the rows of those and of transactions that began since, each once, however long a transaction is
open. A row means "reload", not "add one", so a duplicate does no harm.

A position is valid in one history only. After a restore or a failover, rows that were read may be missing,
and old rows are trimmed: then a reader has to reload everything.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    Connection,
    Row,
    Select,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
    true,
    update,
)
from sqlalchemy.types import Text

from cs_config import notifications
from taskqueue.schema.tables import changes, installation

TASK_QUEUE = "task_queue"
MAPPING = "mapping"
PRIORITY = "priority"

# `xid8` does not wrap at 32 bits; it converts to a number only via text.
#: Id of the transaction, which gets one by this.
OUR_XID = cast(cast(func.pg_current_xact_id(), Text), BigInteger)
_HORIZON = cast(cast(func.pg_snapshot_xmin(func.pg_current_snapshot()), Text), BigInteger)
_NEXT_XID = cast(cast(func.pg_snapshot_xmax(func.pg_current_snapshot()), Text), BigInteger)

_NEW: Mapping[str, Any] = {"kind": bindparam("kind"), "key": bindparam("key"), "at": bindparam("at")}
APPEND = {
    "postgresql": insert(changes).values(xid=OUR_XID, **_NEW),
    # One writer at a time: rows become visible in the order of their ids.
    "sqlite": insert(changes).values(xid=literal(0), **_NEW),
}

_sequences = table("sqlite_sequence", column("name", Text), column("seq", BigInteger))
POSITION: Mapping[str, Select[Any]] = {
    "postgresql": select(
        cast(func.pg_current_snapshot(), Text).label("snapshot"),
        installation.c.trimmed_to,
        installation.c.incarnation,
        # Another server, or the same one on other files, has another start time; tables of a dump that is
        # restored on a running server have new oids.
        cast(func.pg_postmaster_start_time(), Text).label("server"),
        literal_column("CAST(CAST('changes' AS regclass) AS oid)", BigInteger).label("tables"),
    ),
    "sqlite": select(
        func.coalesce(
            select(_sequences.c.seq).where(_sequences.c.name == changes.name).scalar_subquery(), 0
        ).label("snapshot"),
        installation.c.trimmed_to,
        installation.c.incarnation,
        literal("").label("server"),
        literal(0).label("tables"),
    ),
}

_HIGH: BindParameter[int] = bindparam("high", type_=BigInteger)
_IS_NEW = {
    "postgresql": or_(
        changes.c.xid >= _HIGH, changes.c.xid == any_(bindparam("running", type_=ARRAY(BigInteger)))
    ),
    "sqlite": changes.c.change_id >= _HIGH,
}


def _select_changes(dialect: str) -> Select[Any]:
    """The current position and all changes, in one statement and so in one snapshot."""
    here = POSITION[dialect].subquery("here")
    news = select(changes.c.kind, changes.c.key).distinct().where(_IS_NEW[dialect]).subquery("news")
    return select(here, news).select_from(here.outerjoin(news, true()))


READ = {dialect: _select_changes(dialect) for dialect in POSITION}

_BEFORE = bindparam("before", type_=changes.c.at.type)
_OLD = select(changes.c.change_id).where(changes.c.at < _BEFORE).limit(bindparam("most"))
TRIM = {
    # Keep rows of open transactions. Transaction ids in the future are of another server, whose dump this
    # is: trim their rows.
    "postgresql": delete(changes)
    .where(changes.c.change_id.in_(_OLD.where(or_(changes.c.xid < _HORIZON, changes.c.xid >= _NEXT_XID))))
    .returning(changes.c.xid.label("number")),
    "sqlite": delete(changes)
    .where(changes.c.change_id.in_(_OLD))
    .returning(changes.c.change_id.label("number")),
}
NOTE_TRIMMED = (
    update(installation)
    .where(installation.c.trimmed_to < bindparam("up_to"))
    .values(trimmed_to=bindparam("up_to"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedChange:
    """One thing to reload."""

    kind: str  #: TASK_QUEUE, MAPPING or PRIORITY
    key: str  #: id of the task queue; VO of the mapping; group whose task queues have new weights


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPosition:
    """Position of a reader: in transaction ids on PostgreSQL, in row ids on SQLite."""

    history: tuple[object, ...]  #: incarnation, server and tables
    low: int  #: everything before it was read
    high: int  #: nothing from here on was read
    running: tuple[int, ...] = ()  #: transactions between the two that were not read

    def leads_to(self, other: "FeedPosition", *, trimmed_to: int) -> bool:
        """Whether all changes between the two are still in the feed."""
        same_line = self.history == other.history and self.high <= other.high
        # A number in the future was stored by another server, whose dump this is.
        trimmed = self.low <= trimmed_to < other.high
        return same_line and not trimmed


def append_changes(conn: Connection, kind: str, keys: Collection[str], *, now: datetime) -> None:
    """Append changes in the transaction that makes them; readers are notified after its commit."""
    if keys:
        rows = [{"kind": kind, "key": key, "at": now} for key in sorted(keys)]
        conn.execute(APPEND[conn.dialect.name], rows)
        notifications.publish_after_commit(conn, notifications.CHANGES)


def read_position(conn: Connection) -> FeedPosition:
    """Position of a reader that loads everything after this call, in this or a later transaction."""
    return _position_from_row(conn.execute(POSITION[conn.dialect.name]).one())


def read_changes(conn: Connection, since: FeedPosition) -> tuple[Sequence[FeedChange], FeedPosition] | None:
    """Changes since a position, and the next position; None: not known any more, reload everything."""
    values: dict[str, object] = {"high": since.high}
    if conn.dialect.name == "postgresql":
        values["running"] = list(since.running)
    rows = conn.execute(READ[conn.dialect.name], values).all()
    following = _position_from_row(rows[0])
    if not since.leads_to(following, trimmed_to=rows[0].trimmed_to):
        return None
    return [FeedChange(kind=row.kind, key=row.key) for row in rows if row.kind is not None], following


def trim_changes(conn: Connection, *, before: datetime, most: int) -> int:
    """Delete at most `most` rows older than `before`; readers that missed them reload everything."""
    trimmed = conn.execute(TRIM[conn.dialect.name], {"before": before, "most": most}).scalars().all()
    if trimmed:
        conn.execute(NOTE_TRIMMED, {"up_to": max(trimmed)})
    return len(trimmed)


def _position_from_row(row: Row[Any]) -> FeedPosition:
    history = (row.incarnation, row.server, row.tables)
    if isinstance(row.snapshot, int):
        return FeedPosition(history=history, low=row.snapshot + 1, high=row.snapshot + 1)
    low, high, running = row.snapshot.split(":")
    return FeedPosition(
        history=history,
        low=int(low),
        high=int(high),
        running=tuple(int(each) for each in running.split(",") if each),
    )
