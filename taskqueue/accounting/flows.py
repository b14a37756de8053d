"""How many jobs came into each status and left it, by the minute: what the log says, added up.

From it follows how many jobs there were at any time, without counting them: all begin with nothing, and only
jobs that are final go. Of statuses that are final nobody counts who is left, but how many ever came.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, func, select, type_coerce
from sqlalchemy.sql.dml import Insert

from taskqueue.accounting.log_reader import Span, is_within
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import job_flows, job_log, job_stocks, jobs
from taskqueue.upserts import Twins, Upsert

NAME: Final = "flows"

_AT = job_log.c.at
_MINUTE: Mapping[str, ColumnElement[Any]] = {
    "postgresql": func.date_trunc("minute", _AT, type_=_AT.type),
    "sqlite": type_coerce(func.substr(_AT, 1, len("2000-01-01 00:00")).concat(":00.000000"), _AT.type),
}


def _changes(minute: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    by = (jobs.c.vo, minute.label("minute"), job_log.c.from_status, job_log.c.to_status)
    return (
        select(*by, func.count().label("jobs"))
        .join(jobs, jobs.c.job_id == job_log.c.job_id)
        .where(is_within, job_log.c.from_status.is_distinct_from(job_log.c.to_status))
        .group_by(*by)
    )


CHANGES = {dialect: _changes(minute) for dialect, minute in _MINUTE.items()}


def _add_flow(insert: Upsert) -> Insert:
    more = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=["minute", "vo", "status"],
        set_={"came": job_flows.c.came + more.came, "went": job_flows.c.went + more.went},
    )


def _add_stock(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=["vo", "status"], set_={"jobs": job_stocks.c.jobs + insert.excluded.jobs}
    )


ADD_FLOW, ADD_STOCK = Twins(job_flows, _add_flow), Twins(job_stocks, _add_stock)

_Key = tuple[datetime, str, str]


def count(conn: Connection, span: Span) -> None:
    """Add up what happened in a span of the log."""
    came, went = Counter[_Key](), Counter[_Key]()
    for row in conn.execute(CHANGES[conn.dialect.name], span.bounds):
        came[row.minute, row.vo, row.to_status] += row.jobs
        if row.from_status is not None and JobStatus(row.from_status) not in FINAL:
            went[row.minute, row.vo, row.from_status] += row.jobs
    _add_flows(conn, came, went)
    _add_stocks(conn, came, went)


def _add_flows(conn: Connection, came: Counter[_Key], went: Counter[_Key]) -> None:
    rows = [
        {"minute": key[0], "vo": key[1], "status": key[2], "came": came[key], "went": went[key]}
        for key in sorted(came | went)
    ]
    if rows:
        conn.execute(ADD_FLOW.of(conn), rows)


def _add_stocks(conn: Connection, came: Counter[_Key], went: Counter[_Key]) -> None:
    more = Counter[tuple[str, str]]()
    for (_, vo, status), jobs_ in came.items():
        more[vo, status] += jobs_
    for (_, vo, status), jobs_ in went.items():
        more[vo, status] -= jobs_
    rows = [{"vo": vo, "status": status, "jobs": count} for (vo, status), count in sorted(more.items())]
    if rows:
        conn.execute(ADD_STOCK.of(conn), rows)
