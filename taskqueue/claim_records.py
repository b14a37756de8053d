"""What a claim writes beside the job itself: the parts of `claim_statement` that only write."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    DateTime,
    Insert,
    Update,
    any_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete
from sqlalchemy.sql.functions import concat

from taskqueue import claims, statements
from taskqueue.states import JobStatus
from taskqueue.tables import (
    attempts,
    job_log,
    match_requests,
    pilots,
    waiting_jobs,
)
from taskqueue.taking import ASSIGNED

NOW = bindparam("now", type_=DateTime(timezone=True))

#: What is said of an ask, or of that of each job that is given.
Said = Mapping[str, ColumnElement[Any]]


def of(ids: Any, given: CTE, ask: Said, *, keyed: bool, stamped: bool) -> list[CTE]:
    """What follows from jobs that are given.

    Args:
        ids: One job id, or any of some.
        given: The jobs that became Matched.
        ask: What is said of the ask that each is for.
        keyed: Whether some request has an id, to be remembered with its answer.
        stamped: Whether some pilot has a stamp.
    """
    parts = [
        _taken(ids).cte("taken"),
        _opened(given, ask).cte("opened"),
        _logged(given).cte("logged"),
    ]
    if stamped:
        parts.append(_counted(given, ask).cte("counted"))
    if keyed:
        parts.append(_remembered(given, ask).cte("remembered"))
    return parts


def _taken(ids: Any) -> ReturningDelete[Any]:
    return delete(waiting_jobs).where(waiting_jobs.c.job_id == ids).returning(waiting_jobs.c.job_id)


def _opened(given: CTE, ask: Said) -> Insert:
    row = {
        **{name: given.c[name] for name in ("job_id", "epoch", "vo")},
        **{name: ask[name] for name in claims.OPENED},
        "opened_at": NOW,
    }
    return statements.insert_each(attempts, given, row)


def _logged(given: CTE) -> Insert:
    row = {
        "job_id": given.c.job_id,
        "at": NOW,
        "from_status": literal(JobStatus.WAITING.value),
        "to_status": literal(JobStatus.MATCHED.value),
        "minor_status": literal(ASSIGNED),
        "source": literal(claims.SOURCE),
        "epoch": given.c.epoch,
    }
    return statements.insert_each(job_log, given, row)


def _counted(given: CTE, ask: Said) -> Update:
    """Note with each pilot how many jobs it was given."""
    stamp = ask["stamp"].label("stamp")
    each = select(stamp, func.count().label("jobs")).select_from(given).group_by(stamp).subquery("each")
    stamps = any_(func.array(select(stamp).select_from(given).scalar_subquery()))
    return (
        update(pilots)
        .where(pilots.c.stamp == stamps, pilots.c.stamp == each.c.stamp)
        .values(jobs=pilots.c.jobs + each.c.jobs)
    )


def _remembered(given: CTE, ask: Said) -> Insert:
    """In the order of their keys, and without regard to a rival: who comes second takes nothing at all."""
    row = {
        "subject": ask["holder"],
        "request_id": ask["request_id"],
        "at": NOW,
        "matches": concat("[", given.c.job_id, "]"),
    }
    keyed = select(*row.values()).select_from(given).where(ask["request_id"].is_not(None))
    return insert(match_requests).from_select(list(row), keyed.order_by(ask["holder"], ask["request_id"]))
