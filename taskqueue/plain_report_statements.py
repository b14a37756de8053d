"""The statements of plain starts and finishes, for PostgreSQL."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    CTE,
    JSON,
    ColumnElement,
    DateTime,
    Insert,
    Integer,
    Select,
    Text,
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
_STATES = ("status", "minor_status", "application_status")
Columns = Mapping[str, ColumnElement[Any]]

_PLAIN = ("number", "lease", "job_id", "epoch", "vo", "from_status")


def _start() -> Select[Any]:
    said = select(statements.table_of("said", _SAID, name="stated")).cte("said")
    plain = _plain(said, and_(attempts.c.started_at.is_(None), _stands(JobStatus.MATCHED)))
    moved = _move(
        plain,
        status=literal(JobStatus.RUNNING.value),
        minor_status=literal(handover.STARTED),
        started_at=_NOW,
        ended_at=null(),
    )
    expiry = cast(bindparam("expiry", type_=Text), JSON)
    expires = func.coalesce(expiry.op("->>")(moved.c.vo), expiry.op("->>")(literal("")))
    began: Columns = {"started_at": _NOW, "heartbeat_at": _NOW, "lease_expires_at": cast(expires, _TIME)}
    return _whole(moved, began)


def _finish() -> Select[Any]:
    said = select(statements.table_of("said", {**_SAID, **_ENDED}, name="stated")).cte("said")
    runs = or_(_stands(JobStatus.RUNNING), _stands(JobStatus.COMPLETING))
    plain = _plain(said, and_(attempts.c.started_at.is_not(None), runs), *_ENDED)
    ended = {name: plain.c[name] for name in _STATES}
    moved = _move(plain, "request", "exit_code", **ended, ended_at=_NOW)
    closed: Columns = {
        "closed_at": _NOW,
        "closed_as": literal(handover.FINISHED),
        "answer": _answer_to_finish(moved),
        **{name: moved.c[name] for name in ("request", "exit_code")},
    }
    return _whole(moved, closed)


def _stands(status: JobStatus) -> ColumnElement[bool]:
    return jobs.c.status == literal(status.value)


def _plain(said: CTE, where: ColumnElement[bool], *others: str) -> CTE:
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
            attempts.c.closed_at.is_(None),
            attempts.c.ending.is_(False),
            where,
        )
        .with_for_update(of=[attempts, jobs], skip_locked=True, key_share=True)
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
    leases = any_(func.array(select(moved.c.lease).scalar_subquery()))
    noted = update(attempts).where(attempts.c.lease == leases, attempts.c.lease == moved.c.lease)
    answer = select(*(moved.c[name] for name in ("number", "job_id", "epoch", "vo")))
    return answer.add_cte(noted.values(attempt).cte("noted"), _logged(moved).cte("logged"))


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
#: Takes `said`, and `now`.
FINISH = statements.compiled(_finish(), "said")
