"""Asking the accounts: sums by any of what they are kept by, and by time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select, type_coerce

from taskqueue import whose
from taskqueue.accounting import keys
from taskqueue.accounting.use import NAMES, Use
from taskqueue.tables import accounted_use, accounted_waits
from taskqueue.whose import Whose

#: What sums may be asked by.
DIMENSIONS: Final = tuple(name for name in keys.NAMES if name != "hour")


class Bucket(StrEnum):
    """Lengths of time that sums are told for."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    YEAR = "year"


#: How many characters of a time as SQLite stores it say the bucket, and what its beginning has behind them.
_ON_SQLITE: Final[Mapping[Bucket, tuple[int, str]]] = {
    Bucket.DAY: (10, " 00:00:00.000000"),
    Bucket.MONTH: (7, "-01 00:00:00.000000"),
    Bucket.YEAR: (4, "-01-01 00:00:00.000000"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Whose and where; None: all, an empty set: nobody's."""

    vo: frozenset[str] | None = None
    site: frozenset[str] | None = None
    ce: frozenset[str] | None = None
    queue: frozenset[str] | None = None
    owner: frozenset[str] | None = None
    owner_group: frozenset[str] | None = None
    status: frozenset[str] | None = None
    any_of: tuple[Whose, ...] = ()  #: one of these besides, if there are any


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the accounts."""

    by: Sequence[str]  #: of DIMENSIONS
    bucket: Bucket | None  #: None: the whole time in one
    since: datetime  #: at this hour or later; of long ago there are only days
    until: datetime  #: before this
    which: Which


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The sums of one combination of values."""

    at: datetime | None  #: where its bucket begins; None: the whole time
    values: tuple[str, ...]  #: in the order that was asked for
    use: Use = field(default_factory=Use)
    waited: Mapping[str, float] = field(default_factory=dict)  #: seconds by cause

    @property
    def efficiency(self) -> float | None:
        """CPU time per core and wall time, of the attempts whose CPU time was told; None: of none."""
        return self.use.cpu_seconds / self.use.told_core_seconds if self.use.told_core_seconds else None


_Key = tuple[datetime | None, tuple[str, ...]]


def lines(conn: Connection, asked: Question, *, most: int) -> list[Line] | None:
    """What is asked for, in the order of time and values; None: there are more than so many lines."""
    used = _used(conn, asked, most)
    waited = _waited(conn, asked, most)
    if used is None or waited is None or len(keys := sorted(used.keys() | waited.keys(), key=_order)) > most:
        return None
    return [
        Line(at=at, values=values, use=used.get((at, values), Use()), waited=waited.get((at, values), {}))
        for at, values in keys
    ]


def _order(key: _Key) -> tuple[bool, Any, tuple[str, ...]]:
    return key[0] is not None, key[0], key[1]


def _used(conn: Connection, asked: Question, most: int) -> dict[_Key, Use] | None:
    sums = [func.sum(accounted_use.c[name]).label(name) for name in NAMES]
    found = conn.execute(_grouped(conn, accounted_use, asked, sums).limit(most + 1)).mappings()
    # Sums of nothing by nothing are one row without values.
    rows = [row for row in found if row[NAMES[0]] is not None]
    if len(rows) > most:
        return None
    return {_key(row, asked): Use(**{name: _number(name, row[name]) for name in NAMES}) for row in rows}


def _waited(conn: Connection, asked: Question, most: int) -> Mapping[_Key, Mapping[str, float]] | None:
    cause, seconds = accounted_waits.c.cause, func.sum(accounted_waits.c.seconds).label("seconds")
    statement = _grouped(conn, accounted_waits, asked, [cause, seconds]).group_by(cause)
    found: defaultdict[_Key, dict[str, float]] = defaultdict(dict)
    for row in conn.execute(statement.order_by(seconds.desc())).mappings():
        found[_key(row, asked)][row["cause"]] = round(float(row["seconds"]), 3)
        if len(found) > most:
            return None
    return found


def _grouped(
    conn: Connection, table: Table, asked: Question, sums: Sequence[ColumnElement[Any]]
) -> Select[*tuple[Any, ...]]:
    by: list[ColumnElement[Any]] = [table.c[name] for name in asked.by]
    if asked.bucket is not None:
        by.append(_bucket(conn, table, asked.bucket).label("at"))
    return select(*by, *sums).where(*_clauses(table, asked)).group_by(*by)


def _clauses(table: Table, asked: Question) -> list[ColumnElement[bool]]:
    allowed = {name: getattr(asked.which, name) for name in DIMENSIONS}
    chosen = [table.c[name].in_(sorted(values)) for name, values in allowed.items() if values is not None]
    own = whose.clauses(asked.which.any_of, vo=table.c.vo, at=table.c.site.in_, owner=table.c.owner)
    return [table.c.hour >= asked.since, table.c.hour < asked.until, *chosen, *own]


def _bucket(conn: Connection, table: Table, bucket: Bucket) -> ColumnElement[Any]:
    hour = table.c.hour
    if bucket is Bucket.HOUR:
        return hour
    if conn.dialect.name == "postgresql":
        return func.date_trunc(bucket.value, hour, "UTC", type_=hour.type)
    length, rest = _ON_SQLITE[bucket]
    return type_coerce(func.substr(hour, 1, length).concat(rest), hour.type)


def _key(row: Mapping[Any, Any], asked: Question) -> _Key:
    return row["at"] if asked.bucket else None, tuple(row[name] for name in asked.by)


def _number(name: str, value: Any) -> Any:
    return round(float(value), 3) if name.endswith("seconds") else int(value)
