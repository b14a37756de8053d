"""The place of one job in its task queue."""

from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from taskqueue.tables import waiting_jobs

_own = waiting_jobs.alias("own")
_comes_first = or_(
    waiting_jobs.c.priority > _own.c.priority,
    and_(waiting_jobs.c.priority == _own.c.priority, waiting_jobs.c.job_id < _own.c.job_id),
)
OF_JOB = (
    select(
        func.count().label("waiting"),
        func.coalesce(func.sum(case((_comes_first, 1), else_=0)), 0).label("before"),
    )
    .select_from(waiting_jobs.join(_own, _own.c.task_queue_id == waiting_jobs.c.task_queue_id))
    .where(_own.c.job_id == bindparam("job_id"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPlace:
    """Where a job stands among those that ask the same for the same owner."""

    before: int  #: jobs that are handed out first
    waiting: int  #: jobs in the task queue, itself among them


def of_job(conn: Connection, job_id: int) -> WaitingPlace | None:
    """Its place; None: it does not wait."""
    row = conn.execute(OF_JOB, {"job_id": job_id}).one()
    return WaitingPlace(before=row.before, waiting=row.waiting) if row.waiting else None
