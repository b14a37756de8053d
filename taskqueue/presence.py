"""What of ours is at a site, CE or queue now, by the state that a gateway would count it in."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, bindparam, func, or_, select

from taskqueue.states import JobStatus
from taskqueue.tables import attempts, jobs

_NOT_BEGUN = attempts.c.started_at.is_(None)

PRESENT = (
    select(
        func.count().label("jobs"),
        func.count().filter(_NOT_BEGUN).label("submitting"),
        func.count().filter(jobs.c.status == JobStatus.COMPLETING.value).label("gathering"),
    )
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(
        attempts.c.closed_at.is_(None),
        attempts.c.site == bindparam("site"),
        or_(bindparam("ce") == "", attempts.c.ce == bindparam("ce")),
        or_(bindparam("queue") == "", attempts.c.queue == bindparam("queue")),
    )
)

#: Attributes of a job that are counted, as limits name them.
COLUMNS: Mapping[str, ColumnElement[str]] = {
    "JobType": jobs.c.job_type,
    "JobGroup": jobs.c.job_group,
    "JobName": jobs.c.job_name,
    "Owner": jobs.c.owner,
    "OwnerGroup": jobs.c.owner_group,
    "VO": jobs.c.vo,
    "SubmitPool": func.coalesce(jobs.c.submit_pool, ""),
}
BY_VALUE = {
    attribute: select(column.label("value"), jobs.c.vo, func.count().label("jobs"))
    .join(attempts, attempts.c.job_id == jobs.c.job_id)
    .where(
        attempts.c.closed_at.is_(None),
        attempts.c.site == bindparam("site"),
        or_(bindparam("ce") == "", attempts.c.ce == bindparam("ce")),
    )
    .group_by(column, jobs.c.vo)
    for attribute, column in COLUMNS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Numbers of jobs in the hands of pilots."""

    jobs: int
    submitting: int  #: matched, not begun
    gathering: int  #: the payload ended, its output is on the way


def at(conn: Connection, scope: str) -> Present:
    """The jobs at a scope, `Site`, `Site/CE` or `Site/CE/Queue`, killed ones that are ending included."""
    site, ce, queue = (*scope.split("/"), "", "")[:3]
    row = conn.execute(PRESENT, {"site": site, "ce": ce, "queue": queue}).one()
    return Present(jobs=row.jobs, submitting=row.submitting, gathering=row.gathering)


def by_value(conn: Connection, scope: str, attribute: str) -> Mapping[tuple[str, str], int]:
    """How many jobs are at a site or CE now, by VO and value of the attribute."""
    site, ce = (*scope.split("/"), "")[:2]
    rows = conn.execute(BY_VALUE[attribute], {"site": site, "ce": ce})
    return {(row.vo, row.value): row.jobs for row in rows}
