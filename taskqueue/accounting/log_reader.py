"""Readers of the job log: each row is read and counted exactly once, however late it is committed.

The position of a reader is stored in the transaction that stores its sums: if the process is killed between
two steps, or has a rival, a span was counted as a whole or not at all. The end of the log is stored with what
tells when it is complete (`log.LogEnd`), and read only then.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, and_, bindparam, case, func, select, update

from taskqueue.db import sql
from taskqueue.jobs import log
from taskqueue.jobs.log import LogEnd
from taskqueue.schema.tables import job_log
from taskqueue.schema.tables import log_readers as table

#: A log time further in the future comes from a wrong clock; it is not waited for.
_WRONG_CLOCK = timedelta(hours=1)

BEGIN = sql.insert_or_skip(table)
GET = select(table).where(table.c.name == bindparam("the_name"))
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
#: The last of the next rows, and the first of them that is too recent to be read.
NEXT = select(
    func.max(_next.c.log_id).label("last"),
    func.min(case((_is_young, _next.c.log_id))).label("young"),
    func.count().label("rows"),
)


class ConcurrentReadError(Exception):
    """Another process has counted these rows meanwhile; this transaction has to be rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """A range of the log to which no rows will be added."""

    after: int  #: the last number before it
    upto: int  #: its last number
    rows: int

    @property
    def bounds(self) -> dict[str, int]:
        """Bind values of `log.is_within`."""
        return {"after": self.after, "upto": self.upto}


def note_end(conn: Connection, name: str, end: LogEnd) -> None:
    """Store an end of the log, read in an earlier transaction, if all up to the stored one is counted."""
    reader = _get_reader(conn, name)
    if reader["noted"] > reader["counted"] and _read_noted(reader).history == end.history:
        return
    if end.log_id > reader["counted"]:
        under_way = json.dumps([*end.history, end.before])
        conn.execute(NOTE_END, {"the_name": name, "end": end.log_id, "position": under_way})


def read_next_span(
    conn: Connection, name: str, *, now: datetime, lag: timedelta, most: int
) -> LogSpan | None:
    """The next span for this reader, in a later transaction than `note_end`; None: nothing to read yet.

    Rows must be older than `lag`; rows with a time in the future are read when they are settled. At most
    `most` rows.
    """
    reader = _get_reader(conn, name)
    if reader["noted"] <= reader["counted"] or not log.is_complete(conn, _read_noted(reader)):
        return None
    bounds = {"after": reader["counted"], "upto": reader["noted"], "most": most}
    times = {"before": now - lag if lag else now + _WRONG_CLOCK, "nonsense": now + _WRONG_CLOCK}
    found = conn.execute(NEXT, {**bounds, **times}).one()
    # With fewer rows than `most` the span reaches the noted end, even if its row was deleted with its job.
    last = reader["noted"] if found.rows < most else found.last
    upto = last if found.young is None else found.young - 1
    return LogSpan(after=reader["counted"], upto=upto, rows=found.rows) if upto > reader["counted"] else None


def find_noted_span(conn: Connection, name: str) -> LogSpan | None:
    """All up to the noted end, for a reader that needs none of it; None as for `read_next_span`."""
    reader = _get_reader(conn, name)
    if reader["noted"] <= reader["counted"] or not log.is_complete(conn, _read_noted(reader)):
        return None
    return LogSpan(after=reader["counted"], upto=reader["noted"], rows=0)


def advance(conn: Connection, name: str, span: LogSpan) -> None:
    """Store that a span is counted, in the transaction that counts it and before the counting.

    Afterwards the transaction uses index lookups only. ConcurrentReadError: another process was faster.
    """
    if conn.execute(ADVANCE, {"the_name": name, **span.bounds}).rowcount != 1:
        raise ConcurrentReadError(f"the log up to {span.upto} is counted for {name} by another process")
    sql.join_row_by_row(conn)


def _get_reader(conn: Connection, name: str) -> RowMapping:
    reader = conn.execute(GET, {"the_name": name}).mappings().one_or_none()
    if reader is None:
        conn.execute(BEGIN, {"name": name, "counted": 0, "noted": 0, "under_way": "[]"})
        reader = conn.execute(GET, {"the_name": name}).mappings().one()
    return reader


def _read_noted(reader: RowMapping) -> LogEnd:
    """The end of the log as it was stored."""
    *history, before = json.loads(reader["under_way"]) or [0]
    return LogEnd(log_id=reader["noted"], history=tuple(history), before=before)
