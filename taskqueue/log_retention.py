"""Which rows of a job log in partitions are old (`db.log_partitions`), a page at a time.

A row is kept as long as its job exists and is not over, or ended so recently that its VO keeps the log. What
is kept is found by the jobs: in an old partition there are few of them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    TableClause,
    bindparam,
    column,
    delete,
    func,
    select,
    table,
)

from cs_config.versions.tables import UtcTime
from requirements.states import FINAL
from taskqueue.accounting import wait_times
from taskqueue.db import sql
from taskqueue.jobs import log
from taskqueue.retention import counted, has_open_attempt, is_counted
from taskqueue.schema.tables import jobs

#: Rows of a page.
PAGE: Final = 50_000

COUNTED = select(counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Consecutive rows of a partition."""

    rows: int
    upto: int  #: number of the last row
    oldest: datetime | None  #: time of the first row; None: there is no row
    kept: Sequence[int]  #: jobs whose rows are kept
    over: Sequence[int]  #: jobs that exist and whose rows are old


def read_closed_end(conn: Connection, readers: Collection[str]) -> int:
    """The number up to which all rows are there, and counted by each of the `readers`."""
    last: int = conn.execute(log.END).scalar_one() or 0
    read: int = conn.execute(COUNTED, {"readers": sorted(readers)}).scalar_one()
    return min(last, read)


def read_newest(conn: Connection, partition: str) -> datetime | None:
    """Time of the last row of a partition; None: it is empty."""
    rows = _rows(partition)
    newest: datetime | None = conn.execute(
        select(rows.c.at).order_by(rows.c.log_id.desc()).limit(1)
    ).scalar_one_or_none()
    return newest


def read_page(
    conn: Connection,
    partition: str,
    *,
    after: int,
    find_cutoff: Callable[[str], datetime],
    readers: Collection[str],
) -> LogPage:
    """The rows behind a number. `find_cutoff`: the log of a VO's jobs that ended before it is old."""
    page = _page(partition)
    values = {"after": after, "most": PAGE}
    extent = conn.execute(select(func.count(), func.max(page.c.log_id), func.min(page.c.at)), values).one()
    kept: list[int] = []
    over: list[int] = []
    for row in conn.execute(_jobs_of(partition), {**values, "readers": sorted(readers)}):
        is_over = row.status in FINAL and row.updated_at < find_cutoff(row.vo)
        (over if is_over and row.is_counted and not row.is_open else kept).append(row.job_id)
    return LogPage(rows=extent[0], upto=extent[1] or after, oldest=extent[2], kept=kept, over=over)


def list_kept(conn: Connection, partition: str, page: LogPage, *, after: int) -> list[int]:
    """Numbers of the rows of a page that are kept."""
    if not page.kept:
        return []
    rows = _rows(partition)
    found = select(rows.c.log_id).where(*_within(rows), sql.is_listed(rows.c.job_id))
    return list(conn.execute(found, {"after": after, "upto": page.upto, "ids": list(page.kept)}).scalars())


def store_waits(conn: Connection, page: LogPage) -> None:
    """Store how long the jobs waited whose rows are to go, as far as it was not when they ended."""
    for batch in sql.split_batches(page.over):
        wait_times.store_waits(conn, batch)


def remove_page(conn: Connection, partition: str, page: LogPage, *, after: int, before: datetime) -> int:
    """Delete the rows of a page that are old; how many.

    None from after `before`: a transaction may have added rows of a further job since the page was read.
    """
    rows = _rows(partition)
    is_old = rows.c.at < bindparam("before", type_=UtcTime)
    old = delete(rows).where(*_within(rows), is_old, ~sql.is_listed(rows.c.job_id))
    values = {"after": after, "upto": page.upto, "before": before, "ids": list(page.kept)}
    return conn.execute(old, values).rowcount


@cache
def _rows(partition: str) -> TableClause:
    return table(partition, column("log_id", BigInteger), column("job_id", BigInteger), column("at", UtcTime))


def _within(rows: TableClause) -> tuple[Any, Any]:
    return rows.c.log_id > bindparam("after"), rows.c.log_id <= bindparam("upto")


def _page(partition: str) -> Any:
    rows = _rows(partition)
    found = select(rows).where(rows.c.log_id > bindparam("after")).order_by(rows.c.log_id)
    return found.limit(bindparam("most")).subquery()


def _jobs_of(partition: str) -> Any:
    """Select the jobs of a page that exist."""
    found = select(_page(partition).c.job_id).distinct().subquery()
    return select(
        *(jobs.c.job_id, jobs.c.vo, jobs.c.status, jobs.c.updated_at),
        has_open_attempt.label("is_open"),
        is_counted.label("is_counted"),
    ).join_from(found, jobs, jobs.c.job_id == found.c.job_id)
