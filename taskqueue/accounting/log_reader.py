"""What happened, summed: every change of a job's status is read once, and counted exactly once.

Reading the log of jobs from its beginning, each row exactly once, however late it is committed.

Where a reader stands is stored beside what it counted, in one transaction: who is killed between two steps,
or has a rival, has counted nothing or all of a span. A growing number alone is no safe position on
PostgreSQL: a transaction that took an early number may commit late. So the end of the log is noted with the
transactions that were under way, and read up to only when all of those are over; one that is held open
makes the reader wait, and nothing else. Who writes a row of the log has changed its job before, so a
transaction with a number of the log is known to be under way.

On SQLite there is one writer at a time: rows become visible in the order of their numbers.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, bindparam, case, func, select, true, update

from taskqueue.db.sql import Upsert
from taskqueue.schema.tables import job_log
from taskqueue.schema.tables import log_readers as table
from taskqueue.task_queues import change_feed
from taskqueue.task_queues.change_feed import FeedPosition

#: A time that is further ahead than this is of a clock that is wrong; nobody waits for it.
_WRONG_CLOCK = timedelta(hours=1)

BEGIN = Upsert(table, lambda insert: insert.on_conflict_do_nothing(index_elements=["name"]))
GET = select(table).where(table.c.name == bindparam("the_name"))
END = select(func.max(job_log.c.log_id))
NOTE_END = (
    update(table)
    .where(table.c.name == bindparam("the_name"))
    .values(noted=bindparam("end"), under_way=bindparam("position"))
)
ADVANCE = (
    update(table)
    .where(table.c.name == bindparam("the_name"), table.c.counted == bindparam("after"))
    .values(counted=bindparam("upto"))
)

#: PostgreSQL: beside some thousand rows of the log it would rather read all jobs than look those up; with
#: millions of jobs in memory that drives out what the others need.
ROW_BY_ROW = select(
    func.set_config("enable_hashjoin", "off", true()), func.set_config("enable_mergejoin", "off", true())
)

_AT = job_log.c.at
_next = (
    select(job_log.c.log_id, _AT)
    .where(job_log.c.log_id > bindparam("after"), job_log.c.log_id <= bindparam("upto"))
    .order_by(job_log.c.log_id)
    .limit(bindparam("most"))
    .subquery()
)
_is_young = and_(
    _next.c.at > bindparam("before", type_=_AT.type), _next.c.at < bindparam("nonsense", type_=_AT.type)
)
#: The last of the next rows, and the first of them that is too young to be read.
NEXT = select(
    func.max(_next.c.log_id).label("last"),
    func.min(case((_is_young, _next.c.log_id))).label("young"),
    func.count().label("rows"),
)


class ConcurrentReadError(Exception):
    """Another process has counted these rows meanwhile; nothing of this transaction is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """Rows of the log that nobody adds to any more."""

    after: int  #: the last number before it
    upto: int  #: its last number
    rows: int

    @property
    def bounds(self) -> dict[str, int]:
        """It as values of `is_within`."""
        return {"after": self.after, "upto": self.upto}


#: The rows of a span, in a statement that is given its bounds.
is_within = and_(job_log.c.log_id > bindparam("after"), job_log.c.log_id <= bindparam("upto"))


def note_end(conn: Connection, name: str) -> None:
    """Note how far the log goes now, where the reader has read what was noted before."""
    reader = _get_reader(conn, name)
    if reader["noted"] > reader["counted"] and _read_history(reader) == _to_json_value(
        change_feed.read_position(conn)
    ):
        return
    end = conn.execute(END).scalar_one() or 0
    if end > reader["counted"]:
        position = _format_position(change_feed.read_position(conn))
        conn.execute(NOTE_END, {"the_name": name, "end": end, "position": position})


def read_next_span(
    conn: Connection, name: str, *, now: datetime, lag: timedelta, most: int
) -> LogSpan | None:
    """The next rows for this reader, in a later transaction than `note`; None: there are none to read yet.

    Args:
        conn: In a writing transaction.
        name: The reader.
        now: The time.
        lag: How long ago a row has to be of; of rows of the future only what was noted is read.
        most: Rows.
    """
    reader = _get_reader(conn, name)
    if reader["noted"] <= reader["counted"] or not _is_settled(conn, reader):
        return None
    bounds = {"after": reader["counted"], "upto": reader["noted"], "most": most}
    times = {"before": now - lag if lag else now + _WRONG_CLOCK, "nonsense": now + _WRONG_CLOCK}
    found = conn.execute(NEXT, {**bounds, **times}).one()
    # What was noted may be gone, with its job; there is nothing before it then.
    last = reader["noted"] if found.rows < most else found.last
    upto = last if found.young is None else found.young - 1
    return LogSpan(after=reader["counted"], upto=upto, rows=found.rows) if upto > reader["counted"] else None


def advance(conn: Connection, name: str, span: LogSpan) -> None:
    """Note that a span is counted, in the transaction that counts it and before that.

    What else the transaction reads it finds by indexes.

    Raises:
        ReadElsewhereError: Another process was faster.
    """
    if conn.execute(ADVANCE, {"the_name": name, **span.bounds}).rowcount != 1:
        raise ConcurrentReadError(f"the log up to {span.upto} is counted for {name} by another process")
    if conn.dialect.name == "postgresql":
        conn.execute(ROW_BY_ROW)


def _get_reader(conn: Connection, name: str) -> RowMapping:
    reader = conn.execute(GET, {"the_name": name}).mappings().one_or_none()
    if reader is None:
        conn.execute(BEGIN.to_statement(conn), {"name": name, "counted": 0, "noted": 0, "under_way": "[]"})
        reader = conn.execute(GET, {"the_name": name}).mappings().one()
    return reader


def _is_settled(conn: Connection, reader: RowMapping) -> bool:
    """Whether every transaction is over that was under way when the end was noted."""
    if conn.dialect.name == "sqlite":
        return True
    here = change_feed.read_position(conn)
    return _read_history(reader) == _to_json_value(here) and here.low >= json.loads(reader["under_way"])[-1]


def _format_position(position: FeedPosition) -> str:
    return json.dumps([*_to_json_value(position), position.high])


def _to_json_value(position: FeedPosition) -> list[Any]:
    """What the numbers are of, as it comes back from JSON."""
    return list(position.history)


def _read_history(reader: RowMapping) -> list[Any]:
    found: list[Any] = json.loads(reader["under_way"])
    return found[:-1]
