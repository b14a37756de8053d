"""The installation as a whole: which incarnation it is in, and how far its log has come."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Select,
    case,
    column,
    func,
    select,
    table,
)
from sqlalchemy.types import Text

from taskqueue.tables import installation, job_log

_sqlite_sequences = table("sqlite_sequence", column("name", Text), column("seq", BigInteger))
_log_sequence = table("job_log_log_id_seq", column("last_value", BigInteger), column("is_called", Boolean))


def _standing(log_id: ColumnElement[Any]) -> Select[Any]:
    return select(installation.c.incarnation, log_id.label("log_id"))


#: The last number given out, not that of the last row: rows are removed after a while. 0: none was.
STANDING = {
    "postgresql": _standing(
        select(case((_log_sequence.c.is_called, _log_sequence.c.last_value), else_=0)).scalar_subquery()
    ),
    "sqlite": _standing(
        func.coalesce(
            select(_sqlite_sequences.c.seq).where(_sqlite_sequences.c.name == job_log.name).scalar_subquery(),
            0,
        )
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the history of an installation has come; it never goes back but by a loss of commits."""

    incarnation: int  #: grows when commits were lost
    log_id: int  #: last number of the log of jobs that was given out

    def is_behind(self, seen: "Standing") -> bool:
        """Whether commits were lost since it was at `seen`, and nobody has recovered from that."""
        return (self.incarnation, self.log_id) < (seen.incarnation, seen.log_id)


def standing(conn: Connection) -> Standing:
    """How far it has come now."""
    row = conn.execute(STANDING[conn.dialect.name]).one()
    return Standing(incarnation=row.incarnation, log_id=row.log_id)
