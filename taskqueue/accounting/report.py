"""Accounting queries: sums grouped by any accounting dimension and by time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select, type_coerce

from taskqueue import ownership
from taskqueue.accounting.sums import USE
from taskqueue.accounting.usage import SUM_NAMES, Usage
from taskqueue.ownership import OwnershipFilter
from taskqueue.schema.tables import accounted_use, accounted_waits

#: Columns that sums may be grouped by.
DIMENSIONS: Final = tuple(USE.keys[1:])


class TimeBucket(StrEnum):
    """Intervals that sums may be grouped by."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    YEAR = "year"


#: SQLite: length of the prefix of a stored time that identifies the bucket, and the rest of its start.
_ON_SQLITE: Final[Mapping[TimeBucket, tuple[int, str]]] = {
    TimeBucket.DAY: (10, " 00:00:00.000000"),
    TimeBucket.MONTH: (7, "-01 00:00:00.000000"),
    TimeBucket.YEAR: (4, "-01-01 00:00:00.000000"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """A query of accounting sums."""

    by: Sequence[str]  #: of DIMENSIONS
    bucket: TimeBucket | None  #: None: the whole time in one
    since: datetime  #: at this hour or later; old sums are by day
    until: datetime  #: before this
    which: Mapping[str, frozenset[str] | None]  #: allowed values by dimension; None: all
    any_of: tuple[OwnershipFilter, ...] = ()  #: at least one of these, if there are any


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """The sums of one combination of values."""

    at: datetime | None  #: start of its bucket; None: the whole time
    values: tuple[str, ...]  #: in the order of `UsageQuery.by`
    use: Usage = field(default_factory=Usage)
    waited: Mapping[str, float] = field(default_factory=dict)  #: seconds by cause

    @property
    def efficiency(self) -> float | None:
        """CPU time per core time, for attempts with reported CPU time; None: there are none."""
        return self.use.cpu_seconds / self.use.told_core_seconds if self.use.told_core_seconds else None


_RowKey = tuple[datetime | None, tuple[str, ...]]


def read_rows(conn: Connection, query: UsageQuery, *, most: int) -> list[UsageRow] | None:
    """Rows of a query, ordered by time and values; None: more than `most`."""
    used = sum_usage(conn, query, most)
    waited = _sum_waits(conn, query, most)
    if used is None or waited is None or len(keys := used.keys() | waited.keys()) > most:
        return None
    rows = [
        UsageRow(at=key[0], values=key[1], use=used.get(key, Usage()), waited=waited.get(key, {}))
        for key in keys
    ]
    # Rows have a time each, or none has.
    return sorted(rows, key=lambda row: (row.at or query.since, row.values))


def sum_usage(conn: Connection, query: UsageQuery, most: int) -> dict[_RowKey, Usage] | None:
    """The usage of a query, by time and values; None: more than `most` rows."""
    sums = [func.sum(accounted_use.c[name]).label(name) for name in SUM_NAMES]
    found = conn.execute(_group(conn, accounted_use, query, sums).limit(most + 1)).mappings()
    # Without GROUP BY and without rows, SUM returns one row of nulls.
    rows = [row for row in found if row[SUM_NAMES[0]] is not None]
    if len(rows) > most:
        return None
    return {
        _read_key(row, query): Usage(**{name: _convert_number(name, row[name]) for name in SUM_NAMES})
        for row in rows
    }


def _sum_waits(
    conn: Connection, query: UsageQuery, most: int
) -> Mapping[_RowKey, Mapping[str, float]] | None:
    cause, seconds = accounted_waits.c.cause, func.sum(accounted_waits.c.seconds).label("seconds")
    statement = _group(conn, accounted_waits, query, [cause, seconds]).group_by(cause)
    found: defaultdict[_RowKey, dict[str, float]] = defaultdict(dict)
    for row in conn.execute(statement.order_by(seconds.desc())).mappings():
        found[_read_key(row, query)][row["cause"]] = round(float(row["seconds"]), 3)
        if len(found) > most:
            return None
    return found


def _group(
    conn: Connection, table: Table, query: UsageQuery, sums: Sequence[ColumnElement[Any]]
) -> Select[*tuple[Any, ...]]:
    by: list[ColumnElement[Any]] = [table.c[name] for name in query.by]
    if query.bucket is not None:
        by.append(_truncate(conn, table, query.bucket).label("at"))
    chosen = ownership.match_values({table.c[name]: values for name, values in query.which.items()})
    own = ownership.match_any(query.any_of, vo=table.c.vo, at=table.c.site.in_, owner=table.c.owner)
    then = (table.c.hour >= query.since, table.c.hour < query.until)
    return select(*by, *sums).where(*then, *chosen, *own).group_by(*by)


def _truncate(conn: Connection, table: Table, bucket: TimeBucket) -> ColumnElement[Any]:
    hour = table.c.hour
    if bucket is TimeBucket.HOUR:
        return hour
    if conn.dialect.name == "postgresql":
        return func.date_trunc(bucket.value, hour, "UTC", type_=hour.type)
    length, rest = _ON_SQLITE[bucket]
    return type_coerce(func.substr(hour, 1, length).concat(rest), hour.type)


def _read_key(row: Mapping[Any, Any], query: UsageQuery) -> _RowKey:
    return row["at"] if query.bucket else None, tuple(row[name] for name in query.by)


def _convert_number(name: str, value: Any) -> Any:
    return round(float(value), 3) if name.endswith("seconds") else int(value)
