"""Starts, heartbeats and finishes of many pilots in one statement (PostgreSQL).

Only for plain reports: the attempt is open and held by the sender, nobody has killed the job, attempt and
job are in the state that the report expects (`_EXPECTED`), the output that it names, if any, is stored, and
no rule of retry may concern it.
The statement stores what the report decides for that state, states it again as a condition on the locked
rows, and is a transaction of its own. All other reports (repeated, killed, stalled, closed, of another
holder, without their output, or on a locked row) change nothing here; `lifecycle` records each of them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Float,
    Insert,
    Integer,
    Select,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from requirements.states import FINAL, JobStatus
from taskqueue.db import compiled_sql
from taskqueue.db.compiled_sql import AutocommitRunner, CompiledStatement
from taskqueue.leases import retries
from taskqueue.leases.attempts import FINISHED, PEAKS, Attempt
from taskqueue.leases.reports import (
    SOURCE,
    Decision,
    FinishReport,
    HeartbeatReport,
    JobState,
    LeaseReport,
    LeaseRules,
    ReportAnswer,
    StartReport,
)
from taskqueue.schema.tables import attempts, descriptions, job_log, jobs

_TIME = DateTime(timezone=True)
_NOW = bindparam("now", type_=_TIME)

#: Columns of `attempts` that a report may replace; null: unchanged.
_STORED: Final = ("progress", "output_tail", "phases", "local_jobs", "request", "answer")
#: Columns of a report. `begins`: the attempt has not started, and starts; `closes`: it ends. Without a
#: `status` the job does not change.
_COLUMNS: Mapping[str, Any] = {
    "number": Integer,
    "begins": Boolean,
    "closes": Boolean,
    "exit_code": Integer,
    **dict.fromkeys(PEAKS, BigInteger),
    "cpu_seconds": Float,
    **dict.fromkeys(("lease", "holder", "output", "status", "minor_status", "application_status"), Text),
    **dict.fromkeys(_STORED, Text),
}
_MOVED = ("status", "minor_status", "application_status")


def _build_record() -> Select[Any]:
    sent = select(compiled_sql.unnest_json("reports", _COLUMNS, name="report")).cte("reports")
    held = _lock_attempts(sent)
    free = _lock_jobs(held)
    moved = _move_jobs(held, free)
    stored = _update_attempts(held, moved).returning(
        held.c.number, attempts.c.job_id, attempts.c.epoch, attempts.c.vo
    )
    return select(stored.cte("stored")).add_cte(_insert_log(moved).cte("logged"))


def _as_array(column: ColumnElement[Any], *where: ColumnElement[bool]) -> Any:
    """A column as an array: the planner cannot estimate how few rows there are, and might scan a table."""
    return any_(func.array(select(column).where(*where).scalar_subquery()))


def _lock_attempts(sent: CTE) -> CTE:
    """The plain reports with their attempts, which are locked; others' locks are passed over."""
    starts = and_(sent.c.begins, attempts.c.started_at.is_(None), jobs.c.status == JobStatus.MATCHED.value)
    runs = or_(*(jobs.c.status == each.value for each in (JobStatus.RUNNING, JobStatus.COMPLETING)))
    # Rules of retry are applied by the lifecycle. Nothing but failures is looked up.
    of_vo = cast(bindparam("ruled_vos", type_=Text), JSON).op("->>")(attempts.c.vo)
    of_job = exists().where(descriptions.c.description_id == jobs.c.description_id, retries.STATES_RULES)
    never_again = or_(
        sent.c.status.is_(None), sent.c.status != JobStatus.FAILED.value, ~or_(of_vo.is_not(None), of_job)
    )
    goes_on = and_(~sent.c.begins, attempts.c.started_at.is_not(None), runs)
    return (
        select(
            *sent.c,
            *(attempts.c[name] for name in ("job_id", "epoch", "vo")),
            jobs.c.status.label("from_status"),
        )
        .join(attempts, attempts.c.lease == sent.c.lease)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(
            attempts.c.lease == _as_array(sent.c.lease),
            attempts.c.holder == func.coalesce(sent.c.holder, attempts.c.holder),
            attempts.c.closed_at.is_(None),
            attempts.c.ending.is_(False),
            or_(sent.c.output.is_(None), sent.c.output == attempts.c.output),
            or_(starts, goes_on),
            never_again,
        )
        .with_for_update(of=[attempts], skip_locked=True, key_share=True)
        .cte("held")
    )


def _lock_jobs(held: CTE) -> CTE:
    """Lock the jobs that shall change and still have the status that was read with the attempt."""
    return (
        select(jobs.c.job_id)
        .join(held, held.c.job_id == jobs.c.job_id)
        .where(
            jobs.c.job_id == _as_array(held.c.job_id, held.c.status.is_not(None)),
            jobs.c.status == held.c.from_status,
        )
        .with_for_update(of=[jobs], skip_locked=True, key_share=True)
        .cte("free")
    )


def _move_jobs(held: CTE, free: CTE) -> CTE:
    """Change the jobs; in their new state."""
    is_final = or_(*(held.c.status == each.value for each in sorted(FINAL)))
    return (
        update(jobs)
        .where(jobs.c.job_id == _as_array(free.c.job_id), jobs.c.job_id == held.c.job_id)
        .values(
            status=held.c.status,
            minor_status=held.c.minor_status,
            application_status=func.coalesce(held.c.application_status, jobs.c.application_status),
            started_at=case((held.c.begins, _NOW), else_=jobs.c.started_at),
            ended_at=case((is_final, _NOW), else_=null()),
            updated_at=_NOW,
            due_at=null(),
            step=null(),
        )
        .returning(
            *(held.c[name] for name in ("number", "job_id", "epoch", "from_status")),
            *(jobs.c[name] for name in _MOVED),
        )
        .cte("moved")
    )


def _update_attempts(held: CTE, moved: CTE) -> Update:
    seconds = cast(bindparam("lease_seconds", type_=Text), JSON)
    of_vo = func.coalesce(seconds.op("->>")(attempts.c.vo), seconds.op("->>")(literal("")))
    own = [cast(cast(attempts.c.times, JSON).op("->>")(number), Float) for number in (0, 1)]
    extension = case((attempts.c.times.is_(None), cast(of_vo, Float)), else_=func.greatest(*own))
    expiry = _NOW + func.make_interval(0, 0, 0, 0, 0, 0, extension)
    was_moved = exists().where(moved.c.number == held.c.number)
    return (
        update(attempts)
        .where(
            attempts.c.lease == _as_array(held.c.lease),
            attempts.c.lease == held.c.lease,
            or_(held.c.status.is_(None), was_moved),
        )
        .values(
            started_at=case((held.c.begins, _NOW), else_=attempts.c.started_at),
            heartbeat_at=case((held.c.closes, attempts.c.heartbeat_at), else_=_NOW),
            lease_expires_at=case((held.c.closes, attempts.c.lease_expires_at), else_=expiry),
            closed_at=case((held.c.closes, _NOW)),
            closed_as=case((held.c.closes, literal(FINISHED))),
            **{name: func.coalesce(held.c[name], attempts.c[name]) for name in (*_STORED, "exit_code")},
            **{name: func.greatest(held.c[name], attempts.c[name]) for name in PEAKS},
        )
    )


def _insert_log(moved: CTE) -> Insert:
    row = {
        **{name: moved.c[name] for name in ("job_id", "epoch", "from_status")},
        "at": _NOW,
        "to_status": moved.c.status,
        **{name: moved.c[name] for name in ("minor_status", "application_status")},
        "source": literal(SOURCE),
    }
    return compiled_sql.insert_each(job_log, moved, row)


@cache
def _compile_record() -> CompiledStatement:
    """The statement for `reports`, a JSON list of rows of `_COLUMNS`; objects by VO; and `now`."""
    return compiled_sql.compile_statement(_build_record(), "reports", "lease_seconds", "ruled_vos")


_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_EMPTY: dict[str, Any] = dict.fromkeys(each.name for each in fields(Attempt))
_MATCHED = Attempt(**_EMPTY | {"job_id": 0, "epoch": 0, "vo": "", "ending": False, "quarantined": False})
_RUNNING = replace(_MATCHED, started_at=_LONG_AGO)
#: Attempt and job as plain reports expect them; a job that is Completing counts as Running.
_EXPECTED: Mapping[type[LeaseReport], tuple[Attempt, JobState]] = {
    StartReport: (_MATCHED, JobState(status=JobStatus.MATCHED)),
    HeartbeatReport: (_RUNNING, JobState(status=JobStatus.RUNNING)),
    FinishReport: (_RUNNING, JobState(status=JobStatus.RUNNING)),
}


def may_be_plain(report: LeaseReport) -> bool:
    """Whether reports of this kind can be recorded here."""
    return type(report) in _EXPECTED


def _expect(report: LeaseReport) -> tuple[Attempt, JobState]:
    attempt, job = _EXPECTED[type(report)]
    if isinstance(report, FinishReport) and report.output is not None:
        attempt = replace(attempt, output=report.output)
    return attempt, job


def record_plain(
    server: AutocommitRunner, sent: Sequence[LeaseReport], *, rules: LeaseRules, now: datetime
) -> list[ReportAnswer | None]:
    """Record the plain reports; None: that report is not plain, and changed nothing.

    Of several reports on one lease only the first may be plain. A job that an agent marks Stalled at this
    moment may stay Stalled until its next heartbeat.
    """
    first = {sent[number].lease: number for number in reversed(range(len(sent)))}
    decided = {
        number: each.decide(*_expect(each), rules, now)
        for number, each in enumerate(sent)
        if first[each.lease] == number and may_be_plain(each)
    }
    values = {
        "reports": json.dumps([_bind_report(each, sent[each], decided[each]) for each in decided]),
        "lease_seconds": rules.lease_seconds,
        "ruled_vos": json.dumps(dict.fromkeys(sorted(rules.ruled_vos), 1)),
        "now": now.isoformat(),
    }
    answers: list[ReportAnswer | None] = [None] * len(sent)
    record = _compile_record()
    for number, job_id, epoch, vo in server.rows(record.text, record.values(values)):
        answers[number] = replace(decided[number].answer, job_id=job_id, epoch=epoch, vo=vo)
    return answers


def _bind_report(number: int, report: LeaseReport, decision: Decision) -> dict[str, object]:
    values: dict[str, object] = {
        "number": number,
        "lease": report.lease,
        "holder": report.sender.subject,
        "output": report.output if isinstance(report, FinishReport) else None,
        "begins": isinstance(report, StartReport),
        "closes": "closed_at" in decision.changes,
    }
    for move in decision.moves:  # one at most, from the expected status
        values["status"] = move.status
        values["minor_status"] = move.minor
        values["application_status"] = move.application
    for name in (*_STORED, "exit_code", *PEAKS):
        if name in decision.changes:
            values[name] = decision.changes[name]
    return values
