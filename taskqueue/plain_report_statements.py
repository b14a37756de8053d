"""The statements of plain starts, heartbeats and finishes, for PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    JSON,
    ColumnElement,
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

from taskqueue import handover, statements
from taskqueue.states import JobStatus
from taskqueue.tables import attempts, job_log, jobs

_TIME = DateTime(timezone=True)
_NOW = bindparam("now", type_=_TIME)

#: What is said of each.
_SAID: Mapping[str, Any] = {"number": Integer, "lease": Text, "holder": Text}
_ENDED: Mapping[str, Any] = {
    **dict.fromkeys(("status", "minor_status", "application_status", "request"), Text),
    "exit_code": Integer,
}
#: What a heartbeat may say beside, with the column that keeps it.
_TOLD: Mapping[str, str] = {
    "new_progress": "progress",
    "new_tail": "output_tail",
    "new_phases": "phases",
    "new_local_jobs": "local_jobs",
}
_STATES = ("status", "minor_status", "application_status")
Columns = Mapping[str, ColumnElement[Any]]

_PLAIN = ("number", "lease", "job_id", "epoch", "vo", "from_status")


def _stands(*states: JobStatus) -> ColumnElement[bool]:
    return or_(*(jobs.c.status == literal(each.value) for each in states))


_OPEN = and_(attempts.c.closed_at.is_(None), attempts.c.ending.is_(False))
_GIVEN = and_(_OPEN, attempts.c.started_at.is_(None), _stands(JobStatus.MATCHED))
#: Of an attempt and its job: it runs, and nobody wants it to end.
RUNS = and_(_OPEN, attempts.c.started_at.is_not(None), _stands(JobStatus.RUNNING, JobStatus.COMPLETING))


def _start() -> Select[Any]:
    plain = _plain(_said(), _GIVEN)
    moved = _move(
        plain,
        status=literal(JobStatus.RUNNING.value),
        minor_status=literal(handover.STARTED),
        started_at=_NOW,
        ended_at=null(),
    )
    began: Columns = {"started_at": _NOW, "heartbeat_at": _NOW, "lease_expires_at": _expires(moved)}
    return _whole(moved, began)


def _heartbeat() -> Select[Any]:
    said = _said(dict.fromkeys(_TOLD, Text))
    # Not the jobs, of which nothing changes: to lock a row is to write it.
    plain = _plain(said, RUNS, *_TOLD, of=[attempts])
    told = {kept: func.coalesce(plain.c[name], attempts.c[kept]) for name, kept in _TOLD.items()}
    noted = _noted(plain, {"heartbeat_at": _NOW, "lease_expires_at": _expires(plain), **told})
    return select(noted.returning(attempts.c.lease, attempts.c.vo).cte("noted"))


def _finish() -> Select[Any]:
    plain = _plain(_said(_ENDED), RUNS, *_ENDED)
    ended = {name: plain.c[name] for name in _STATES}
    moved = _move(plain, "request", "exit_code", **ended, ended_at=_NOW)
    closed: Columns = {
        "closed_at": _NOW,
        "closed_as": literal(handover.FINISHED),
        "answer": _answer_to_finish(moved),
        **{name: moved.c[name] for name in ("request", "exit_code")},
    }
    return _whole(moved, closed)


def _expires(source: CTE) -> ColumnElement[Any]:
    expiry = cast(bindparam("expiry", type_=Text), JSON)
    its = func.coalesce(expiry.op("->>")(source.c.vo), expiry.op("->>")(literal("")))
    return cast(its, _TIME)


def _said(others: Mapping[str, Any] | None = None) -> CTE:
    return select(statements.table_of("said", {**_SAID, **(others or {})}, name="stated")).cte("said")


def _plain(
    said: CTE, where: ColumnElement[bool], *others: str, of: Sequence[Table] = (attempts, jobs)
) -> CTE:
    """The attempts and jobs whose report is plain, locked as they are now."""
    # As an array: the planner cannot know how few they are, and might read the whole table for a join.
    leases = any_(func.array(select(said.c.lease).scalar_subquery()))
    return (
        select(
            *(said.c[name] for name in ("number", *others)),
            *(attempts.c[name] for name in ("lease", "job_id", "epoch", "vo")),
            jobs.c.status.label("from_status"),
        )
        .join(attempts, attempts.c.lease == said.c.lease)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(
            attempts.c.lease == leases,
            attempts.c.holder == func.coalesce(said.c.holder, attempts.c.holder),
            where,
        )
        .with_for_update(of=list(of), skip_locked=True, key_share=True)
        .cte("plain")
    )


def _move(plain: CTE, *others: str, **values: ColumnElement[Any]) -> CTE:
    """The jobs in their new state."""
    ids = any_(func.array(select(plain.c.job_id).scalar_subquery()))
    return (
        update(jobs)
        .where(jobs.c.job_id == ids, jobs.c.job_id == plain.c.job_id)
        .values(**values, updated_at=_NOW, due_at=null(), step=null())
        .returning(*(plain.c[name] for name in (*_PLAIN, *others)), *(jobs.c[name] for name in _STATES))
        .cte("moved")
    )


def _whole(moved: CTE, attempt: Columns) -> Select[Any]:
    """With what is written of the attempts, and the log."""
    answer = select(*(moved.c[name] for name in ("number", "job_id", "epoch", "vo")))
    return answer.add_cte(_noted(moved, attempt).cte("noted"), _logged(moved).cte("logged"))


def _noted(source: CTE, attempt: Columns) -> Update:
    leases = any_(func.array(select(source.c.lease).scalar_subquery()))
    same = attempts.c.lease == source.c.lease
    return update(attempts).where(attempts.c.lease == leases, same).values(attempt)


def _logged(moved: CTE) -> Insert:
    row = {
        **{name: moved.c[name] for name in ("job_id", "epoch", "from_status")},
        "at": _NOW,
        "to_status": moved.c.status,
        **{name: moved.c[name] for name in ("minor_status", "application_status")},
        "source": literal(handover.SOURCE),
    }
    return statements.insert_each(job_log, moved, row)


def _answer_to_finish(moved: CTE) -> ColumnElement[Any]:
    """As `handover.finish` keeps it."""
    said = [part for name in ("epoch", "job_id", "status") for part in (literal(name), moved.c[name])]
    return cast(func.json_build_object(*said), Text)


#: Takes `said`, a JSON list; `expiry`, a JSON object: by VO until when a lease is good, by no name for those
#: that nobody knows any more; and `now`.
START = statements.compiled(_start(), "said", "expiry")
#: Takes the same.
HEARTBEAT = statements.compiled(_heartbeat(), "said", "expiry")
#: Takes `said`, and `now`.
FINISH = statements.compiled(_finish(), "said")
