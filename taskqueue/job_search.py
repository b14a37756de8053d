"""Finding jobs by what they are: lists in pages, counts by columns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, func, select

from requirements.errors import InvalidRequest
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from taskqueue import job_waits, jobs
from taskqueue.jobs import Job
from taskqueue.states import JobStatus
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs; None asks nothing, an empty set is met by no job."""

    job_ids: frozenset[int] | None = None
    vos: frozenset[str] | None = None
    owner: str | None = None
    owner_group: str | None = None
    statuses: frozenset[JobStatus] | None = None
    minor_status: str | None = None
    sites: frozenset[str] | None = None
    submit_pool: str | None = None
    job_name: str | None = None
    job_type: str | None = None
    job_group: str | None = None
    submitted_since: datetime | None = None
    submitted_before: datetime | None = None

    def clauses(self) -> list[ColumnElement[bool]]:
        """It as conditions on the table of jobs."""
        sets = {
            table.c.job_id: self.job_ids,
            table.c.vo: self.vos,
            table.c.status: self.statuses,
            table.c.site: self.sites,
        }
        equal = {
            table.c.owner: self.owner,
            table.c.owner_group: self.owner_group,
            table.c.minor_status: self.minor_status,
            table.c.submit_pool: self.submit_pool,
            table.c.job_name: self.job_name,
            table.c.job_type: self.job_type,
            table.c.job_group: self.job_group,
        }
        clauses: list[ColumnElement[bool]] = []
        clauses += [column.in_(sorted(allowed)) for column, allowed in sets.items() if allowed is not None]
        clauses += [column == value for column, value in equal.items() if value is not None]
        if self.submitted_since is not None:
            clauses.append(table.c.submitted_at >= self.submitted_since)
        if self.submitted_before is not None:
            clauses.append(table.c.submitted_at < self.submitted_before)
        return clauses


def find(conn: Connection, which: Filter, *, limit: int, after: int | None = None) -> list[Job]:
    """A page of jobs, the newest first.

    Args:
        conn: Any connection.
        which: The jobs.
        limit: How many at most.
        after: Last id of the page before.
    """
    statement = select(*jobs.COLUMNS).where(*which.clauses())
    if after is not None:
        statement = statement.where(table.c.job_id < after)
    rows = conn.execute(statement.order_by(table.c.job_id.desc()).limit(limit)).mappings()
    return [jobs.from_row(dict(row)) for row in rows]


def find_ids(conn: Connection, which: Filter, *, limit: int, after: int = 0) -> list[int]:
    """Ids of jobs, the oldest first: for working through all of them."""
    statement = select(table.c.job_id).where(*which.clauses(), table.c.job_id > after)
    return list(conn.execute(statement.order_by(table.c.job_id).limit(limit)).scalars())


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
