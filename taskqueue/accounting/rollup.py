"""Rollup of old sums: minutes into hours, hours into days. Only the time of day is lost."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Table, bindparam, delete, extract, func, select

from taskqueue.accounting import time_series, usage, wait_sums
from taskqueue.accounting.usage import truncate_to_hour
from taskqueue.db.sql import Upsert
from taskqueue.schema.tables import accounted_use, accounted_waits, job_flows

#: Rolled up in one transaction.
_CHUNK: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollup:
    """A table of sums, and how its old rows are rolled up."""

    table: Table
    at: Column[Any]
    below: str  #: the part of a time that is zero in rows that are already rolled up
    coarse: Callable[[datetime], datetime]  #: truncates a time to the longer interval
    sums: Sequence[str]
    add: Upsert


def _truncate_to_day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


FLOWS: Final = Rollup(
    table=job_flows,
    at=job_flows.c.minute,
    below="minute",
    coarse=truncate_to_hour,
    sums=("came", "went"),
    add=time_series.ADD_FLOW,
)
USE: Final = Rollup(
    table=accounted_use,
    at=accounted_use.c.hour,
    below="hour",
    coarse=_truncate_to_day,
    sums=usage.SUM_NAMES,
    add=usage.ADD,
)
WAITS: Final = Rollup(
    table=accounted_waits,
    at=accounted_waits.c.hour,
    below="hour",
    coarse=_truncate_to_day,
    sums=("seconds",),
    add=wait_sums.ADD,
)

REMOVE_FLOWS = delete(job_flows).where(
    job_flows.c.minute < bindparam("before", type_=job_flows.c.minute.type)
)


def roll_up_oldest(conn: Connection, rollup: Rollup, *, before: datetime) -> int:
    """Roll up the oldest piece before that time; the number of pieces, 0 or 1."""
    is_fine = _extract_part(conn, rollup) != 0
    first = conn.execute(select(func.min(rollup.at)).where(rollup.at < before, is_fine)).scalar_one()
    if first is None:
        return 0
    piece = (rollup.at >= truncate_to_hour(first), rollup.at < truncate_to_hour(first) + _CHUNK, is_fine)
    rows = conn.execute(delete(rollup.table).where(*piece).returning(*rollup.table.c)).mappings().all()
    conn.execute(rollup.add.to_statement(conn), _merge_rows(rollup, rows))
    return 1


def remove_flows(conn: Connection, *, before: datetime) -> int:
    """Delete flows before that time; number of rows."""
    return conn.execute(REMOVE_FLOWS, {"before": before}).rowcount


def _merge_rows(rollup: Rollup, rows: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    total: defaultdict[tuple[Any, ...], dict[str, Any]] = defaultdict(lambda: dict.fromkeys(rollup.sums, 0))
    keys = [column.name for column in rollup.table.c if column.name not in rollup.sums]
    for row in rows:
        coarse = {**row, rollup.at.name: rollup.coarse(row[rollup.at.name])}
        sums = total[tuple(coarse[name] for name in keys)]
        for name in rollup.sums:
            sums[name] += row[name]
    return [dict(zip(keys, key, strict=True)) | total[key] for key in sorted(total)]


def _extract_part(conn: Connection, rollup: Rollup) -> ColumnElement[int]:
    """Part of the time in UTC, independent of the server's time zone."""
    utc = func.timezone("UTC", rollup.at) if conn.dialect.name == "postgresql" else rollup.at
    return extract(rollup.below, utc)
