"""Finding jobs by what they are: lists in pages, counts by columns."""

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from requirements.errors import InvalidRequest
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from taskqueue import job_waits, job_walks
from taskqueue.job_filter import Filter
from taskqueue.jobs import Job
from taskqueue.tables import jobs as table

#: By what a summary may count.
SUMMARY_COLUMNS = frozenset(
    {
        "status",
        "minor_status",
        "site",
        "vo",
        "owner",
        "owner_group",
        "job_type",
        "job_group",
        "job_name",
        "submit_pool",
        "task_queue",
    }
)


def find(conn: Connection, which: Filter, *, limit: int, after: int | None = None) -> list[Job]:
    """A page of jobs, the newest first.

    Args:
        conn: Any connection.
        which: The jobs.
        limit: How many at most.
        after: Last id of the page before.
    """
    found: list[Job] = []
    while True:
        seen = job_walks.look(conn, which, limit=limit - len(found), after=after)
        found += seen.jobs
        if seen.next is None or len(found) == limit:
            return found
        after = seen.next


def count(conn: Connection, which: Filter) -> int:
    """How many jobs there are."""
    return conn.execute(select(func.count()).select_from(table).where(*which.clauses())).scalar_one()


def summary(conn: Connection, by: Sequence[str], which: Filter) -> Counter[tuple[str | None, ...]]:
    """How many jobs there are for each combination of values of the columns `by`.

    Raises:
        InvalidRequest: A column is unknown, or there is none.
    """
    if problems := _problems(by):
        raise InvalidRequest(problems)
    columns = [_column(name) for name in by]
    rows = conn.execute(select(*columns, func.count()).where(*which.clauses()).group_by(*columns))
    return Counter({tuple(row[:-1]): row[-1] for row in rows})


def waits(
    conn: Connection, by: Sequence[str], which: Filter
) -> Mapping[tuple[str | None, ...], Mapping[str, float]]:
    """For what those of the jobs that have ended had waited, in seconds, summed as `summary` counts."""
    return job_waits.sums(conn, [_column(name) for name in by], which.clauses())


def _column(name: str) -> ColumnElement[str]:
    return table.c["task_queue_id" if name == "task_queue" else name]


def _problems(by: Sequence[str]) -> list[Problem]:
    allowed = ", ".join(sorted(SUMMARY_COLUMNS))
    if not by:
        return [Problem(path="by", message=f"names no column; {allowed} are allowed")]
    return [
        Problem(
            path="by",
            message=f"{name!r} is not among {allowed}",
            suggestion=did_you_mean(name, SUMMARY_COLUMNS),
        )
        for name in by
        if name not in SUMMARY_COLUMNS
    ]
