"""Tables of sums: additions, and the rollup of old rows: minutes into hours, hours into days.

A rollup loses nothing but the time of day.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, bindparam, delete, extract, func, select

from taskqueue.db import sql
from taskqueue.schema.tables import accounted_use, accounted_waits, job_flows

#: Rolled up in one transaction.
_CHUNK: Final = timedelta(hours=1)


def truncate_to_hour(at: datetime) -> datetime:
    """The start of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def _truncate_to_day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


class SumTable:
    """A table of sums by time and other values; its key begins with the time."""

    def __init__(self, table: Table, *, below: str, coarse: Callable[[datetime], datetime]) -> None:
        """`below` is the part of a time that is zero in rolled up rows; `coarse` truncates a time to that."""
        self.table, self.below, self.coarse = table, below, coarse
        self.keys = [each.name for each in table.primary_key]
        self.sums = [each.name for each in table.c if not each.primary_key]
        self.at = table.c[self.keys[0]]
        self._add = sql.insert_or_add(table)

    def add(self, conn: Connection, rows: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> None:
        """Add sums, by key."""
        if rows:
            values = [{**dict(zip(self.keys, key, strict=True)), **rows[key]} for key in sorted(rows)]
            conn.execute(self._add, values)


FLOWS: Final = SumTable(job_flows, below="minute", coarse=truncate_to_hour)
USE: Final = SumTable(accounted_use, below="hour", coarse=_truncate_to_day)
WAITS: Final = SumTable(accounted_waits, below="hour", coarse=_truncate_to_day)

REMOVE_FLOWS = delete(job_flows).where(
    job_flows.c.minute < bindparam("before", type_=job_flows.c.minute.type)
)


def roll_up_oldest(conn: Connection, sums: SumTable, *, before: datetime) -> int:
    """Roll up the oldest piece before that time; the number of pieces, 0 or 1."""
    is_fine = _extract_part(conn, sums) != 0
    first = conn.execute(select(func.min(sums.at)).where(sums.at < before, is_fine)).scalar_one()
    if first is None:
        return 0
    piece = (sums.at >= truncate_to_hour(first), sums.at < truncate_to_hour(first) + _CHUNK, is_fine)
    rows = conn.execute(delete(sums.table).where(*piece).returning(*sums.table.c)).mappings().all()
    sums.add(conn, _merge_rows(sums, rows))
    return 1


def remove_flows(conn: Connection, *, before: datetime) -> int:
    """Delete flows before that time; number of rows."""
    return conn.execute(REMOVE_FLOWS, {"before": before}).rowcount


def _merge_rows(sums: SumTable, rows: Sequence[Mapping[Any, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    total: defaultdict[tuple[Any, ...], dict[str, Any]] = defaultdict(lambda: dict.fromkeys(sums.sums, 0))
    for row in rows:
        coarse = {**row, sums.at.name: sums.coarse(row[sums.at.name])}
        of_key = total[tuple(coarse[name] for name in sums.keys)]
        for name in sums.sums:
            of_key[name] += row[name]
    return total


def _extract_part(conn: Connection, sums: SumTable) -> ColumnElement[int]:
    """Part of the time in UTC, independent of the server's time zone."""
    utc = func.timezone("UTC", sums.at) if conn.dialect.name == "postgresql" else sums.at
    return extract(sums.below, utc)
