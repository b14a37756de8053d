"""Starts, heartbeats and finishes of many pilots in one statement (PostgreSQL).

Only for plain reports: the attempt is open and held by the sender, nobody has killed the job, and its status
is the expected one. One statement, with its commit, handles all reports that have come in. All other reports
(repeated, killed, stalled, closed, of another holder, or on a locked row) change nothing here; `lifecycle`
handles each of them alone.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    JSON,
    BindParameter,
    ColumnElement,
    Connection,
    DateTime,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from taskqueue.db import compiled_sql
from taskqueue.db.compiled_sql import StatementRunner
from taskqueue.leases import lifecycle
from taskqueue.leases.lifecycle import PayloadResult, Progress
from taskqueue.schema.tables import attempts, job_log, jobs
from taskqueue.states import JobStatus

_TIME = DateTime(timezone=True)
_NOW = bindparam("now", type_=_TIME)

#: Columns of every report.
_REPORT_COLUMNS: Mapping[str, Any] = {"number": Integer, "lease": Text, "holder": Text}
_RESULT_COLUMNS: Mapping[str, Any] = {
    **dict.fromkeys(("status", "minor_status", "application_status", "request"), Text),
    "exit_code": Integer,
}
#: Optional columns of a heartbeat, with the column of `attempts` that stores each.
_PROGRESS_COLUMNS: Mapping[str, str] = {
    "new_progress": "progress",
    "new_tail": "output_tail",
    "new_phases": "phases",
    "new_local_jobs": "local_jobs",
}
_STATUS_COLUMNS = ("status", "minor_status", "application_status")
ReportColumns = Mapping[str, ColumnElement[Any]]

_PLAIN_COLUMNS = ("number", "lease", "job_id", "epoch", "vo", "from_status")


def _is_status(*states: JobStatus) -> ColumnElement[bool]:
    return or_(*(jobs.c.status == literal(each.value) for each in states))


_OPEN = and_(attempts.c.closed_at.is_(None), attempts.c.ending.is_(False))
_NOT_STARTED = and_(_OPEN, attempts.c.started_at.is_(None), _is_status(JobStatus.MATCHED))
#: Condition on an attempt and its job: running, and not killed.
RUNS = and_(_OPEN, attempts.c.started_at.is_not(None), _is_status(JobStatus.RUNNING, JobStatus.COMPLETING))


def _build_start() -> Select[Any]:
    plain = _lock_plain(_unnest_reports(), _NOT_STARTED)
    moved = _move_jobs(
        plain,
        status=literal(JobStatus.RUNNING.value),
        minor_status=literal(lifecycle.STARTED),
        started_at=_NOW,
        ended_at=null(),
    )
    began: ReportColumns = {
        "started_at": _NOW,
        "heartbeat_at": _NOW,
        "lease_expires_at": _select_expiry(moved),
    }
    return _combine(moved, began)


def _build_heartbeat() -> Select[Any]:
    reports = _unnest_reports(dict.fromkeys(_PROGRESS_COLUMNS, Text))
    # Only attempts are locked: nothing changes in the jobs, and a row lock is a write.
    plain = _lock_plain(reports, RUNS, *_PROGRESS_COLUMNS, of=[attempts])
    progress = {
        column: func.coalesce(plain.c[name], attempts.c[column]) for name, column in _PROGRESS_COLUMNS.items()
    }
    noted = _update_attempts(
        plain, {"heartbeat_at": _NOW, "lease_expires_at": _select_expiry(plain), **progress}
    )
    return select(noted.returning(attempts.c.lease, attempts.c.vo).cte("noted"))


def _build_finish() -> Select[Any]:
    plain = _lock_plain(_unnest_reports(_RESULT_COLUMNS), RUNS, *_RESULT_COLUMNS)
    ended = {name: plain.c[name] for name in _STATUS_COLUMNS}
    moved = _move_jobs(plain, "request", "exit_code", **ended, ended_at=_NOW)
    closed: ReportColumns = {
        "closed_at": _NOW,
        "closed_as": literal(lifecycle.FINISHED),
        "answer": _build_finish_answer(moved),
        **{name: moved.c[name] for name in ("request", "exit_code")},
    }
    return _combine(moved, closed)


def _select_expiry(source: CTE) -> ColumnElement[Any]:
    expiry = cast(bindparam("expiry", type_=Text), JSON)
    of_vo = func.coalesce(expiry.op("->>")(source.c.vo), expiry.op("->>")(literal("")))
    return cast(of_vo, _TIME)


def _unnest_reports(others: Mapping[str, Any] | None = None) -> CTE:
    columns = {**_REPORT_COLUMNS, **(others or {})}
    return select(compiled_sql.unnest_json("reports", columns, name="report")).cte("reports")


def _lock_plain(
    reports: CTE, where: ColumnElement[bool], *others: str, of: Sequence[Table] = (attempts, jobs)
) -> CTE:
    """Select and lock the attempts and jobs whose report is plain."""
    # As an array: the planner cannot estimate how few rows there are, and might scan the table for a join.
    leases = any_(func.array(select(reports.c.lease).scalar_subquery()))
    return (
        select(
            *(reports.c[name] for name in ("number", *others)),
            *(attempts.c[name] for name in ("lease", "job_id", "epoch", "vo")),
            jobs.c.status.label("from_status"),
        )
        .join(attempts, attempts.c.lease == reports.c.lease)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(
            attempts.c.lease == leases,
            attempts.c.holder == func.coalesce(reports.c.holder, attempts.c.holder),
            where,
        )
        .with_for_update(of=list(of), skip_locked=True, key_share=True)
        .cte("plain")
    )


def _move_jobs(plain: CTE, *others: str, **values: ColumnElement[Any]) -> CTE:
    """Update the jobs; returns them in their new state."""
    ids = any_(func.array(select(plain.c.job_id).scalar_subquery()))
    return (
        update(jobs)
        .where(jobs.c.job_id == ids, jobs.c.job_id == plain.c.job_id)
        .values(**values, updated_at=_NOW, due_at=null(), step=null())
        .returning(
            *(plain.c[name] for name in (*_PLAIN_COLUMNS, *others)),
            *(jobs.c[name] for name in _STATUS_COLUMNS),
        )
        .cte("moved")
    )


def _combine(moved: CTE, attempt: ReportColumns) -> Select[Any]:
    """The moved jobs; with the updates of their attempts, and the log, as further CTEs."""
    answer = select(*(moved.c[name] for name in ("number", "job_id", "epoch", "vo")))
    return answer.add_cte(_update_attempts(moved, attempt).cte("noted"), _insert_log(moved).cte("logged"))


def _update_attempts(source: CTE, attempt: ReportColumns) -> Update:
    leases = any_(func.array(select(source.c.lease).scalar_subquery()))
    same = attempts.c.lease == source.c.lease
    return update(attempts).where(attempts.c.lease == leases, same).values(attempt)


def _insert_log(moved: CTE) -> Insert:
    row = {
        **{name: moved.c[name] for name in ("job_id", "epoch", "from_status")},
        "at": _NOW,
        "to_status": moved.c.status,
        **{name: moved.c[name] for name in ("minor_status", "application_status")},
        "source": literal(lifecycle.SOURCE),
    }
    return compiled_sql.insert_each(job_log, moved, row)


def _build_finish_answer(moved: CTE) -> ColumnElement[Any]:
    """As `lifecycle.finish` stores it."""
    parts = [part for name in ("epoch", "job_id", "status") for part in (literal(name), moved.c[name])]
    return cast(func.json_build_object(*parts), Text)


#: Takes `reports`, a JSON list; `expiry`, the JSON object of `list_expiries`; and `now`.
START = compiled_sql.compile_statement(_build_start(), "reports", "expiry")
HEARTBEAT = compiled_sql.compile_statement(_build_heartbeat(), "reports", "expiry")
#: Takes `reports` and `now`.
FINISH = compiled_sql.compile_statement(_build_finish(), "reports")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """A payload is about to run."""

    lease: str
    holder: str | None  #: token subject of the sender; None: a sender that may report for others


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReport:
    """A payload has ended."""

    lease: str
    holder: str | None
    report: PayloadResult


#: Lease time after a report, by VO; of the empty name for unknown VOs.
LeaseTime = Callable[[str], timedelta]


class ReportedJob(NamedTuple):
    """A job that has the state of its report."""

    job_id: int
    epoch: int
    vo: str


def start_jobs(
    server: StatementRunner,
    reports: Sequence[StartReport],
    *,
    vos: Iterable[str],
    lease_time: LeaseTime,
    now: datetime,
) -> list[ReportedJob | None]:
    """Mark jobs Running; None: that report is not plain, and changed nothing."""
    rows = [_report_values(number, each.lease, each.holder) for number, each in enumerate(reports)]
    values = {
        "reports": json.dumps(rows),
        "expiry": list_expiries(vos, lease_time, now),
        "now": now.isoformat(),
    }
    return _order_jobs(len(reports), server.rows(START.text, START.values(values)))


def finish_jobs(
    server: StatementRunner, reports: Sequence[FinishReport], *, now: datetime
) -> list[ReportedJob | None]:
    """Mark jobs Done or Failed and close their attempts; None: that report is not plain."""
    rows = [
        {**_report_values(number, each.lease, each.holder), **_result_values(each.report)}
        for number, each in enumerate(reports)
    ]
    values = {"reports": json.dumps(rows), "now": now.isoformat()}
    return _order_jobs(len(reports), server.rows(FINISH.text, FINISH.values(values)))


def list_expiries(vos: Iterable[str], lease_time: LeaseTime, now: datetime) -> str:
    """JSON object: expiry of a lease that is extended now, by VO; under "" for unknown VOs.

    A VO with a lease time beyond the range of dates gets the one of unknown VOs.
    """
    found = {"": (now + lease_time("")).isoformat()}
    for vo in vos:
        try:
            found[vo] = (now + lease_time(vo)).isoformat()
        except (OverflowError, ValueError) as error:
            log.warning("the lease time of the VO %s cannot be added to a date: %s", vo, error)
    return json.dumps(found)


def _report_values(number: int, lease: str, holder: str | None) -> dict[str, object]:
    return {"number": number, "lease": lease, "holder": holder}


def _result_values(report: PayloadResult) -> dict[str, object]:
    return {
        "status": report.status,
        "minor_status": report.stored_minor_status,
        "application_status": report.application_status,
        "request": report.to_json(),
        "exit_code": report.exit_code,
    }


def _order_jobs(count: int, rows: Iterable[Sequence[Any]]) -> list[ReportedJob | None]:
    found: list[ReportedJob | None] = [None] * count
    for number, job_id, epoch, vo in rows:
        found[number] = ReportedJob(job_id=job_id, epoch=epoch, vo=vo)
    return found


_LEASES: BindParameter[str] = bindparam("leases", expanding=True)
_PLAIN_HEARTBEATS = (
    select(attempts.c.lease, attempts.c.holder, attempts.c.vo)
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(attempts.c.lease.in_(_LEASES), RUNS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReport:
    """One heartbeat."""

    lease: str
    holder: str | None  #: token subject of the sender; None: a sender that may report for others
    said: Progress


def record_heartbeats(
    server: StatementRunner,
    beats: Sequence[HeartbeatReport],
    *,
    vos: Iterable[str],
    lease_time: LeaseTime,
    now: datetime,
) -> Mapping[str, str]:
    """Store plain heartbeats in one statement; the recorded leases with their VOs.

    A job that an agent marks Stalled at this moment may stay Stalled until its next heartbeat.
    Of several heartbeats for one lease at most one is stored.
    """
    rows = [{"lease": each.lease, "holder": each.holder, **each.said.values()} for each in beats]
    values = {
        "reports": json.dumps(rows),
        "expiry": list_expiries(vos, lease_time, now),
        "now": now.isoformat(),
    }
    return dict(server.rows(HEARTBEAT.text, HEARTBEAT.values(values)))


def record_heartbeats_sqlite(
    conn: Connection, beats: Sequence[HeartbeatReport], *, lease_time: LeaseTime, now: datetime
) -> Mapping[str, str]:
    """SQLite variant: runs in-process, so that the statements need not be combined."""
    by_lease = {each.lease: each for each in beats}
    found = conn.execute(_PLAIN_HEARTBEATS, {"leases": sorted(by_lease)}).all()
    plain = {row.lease: row.vo for row in found if by_lease[row.lease].holder in (None, row.holder)}
    rows = [
        {
            "the_lease": lease,
            "expires": now + lease_time(vo),
            "now": now,
            "started": None,
            **by_lease[lease].said.values(),
        }
        for lease, vo in plain.items()
    ]
    if rows:
        conn.execute(lifecycle.TOUCH, rows)
    return plain
