"""Search for jobs: filter, pages by id, and counts by status or other columns.

A filter may match three of ten million jobs, or none. So a search scans only indexes that end with the job
id and carry most of the filter, one for each status, and stops after a number of rows. The page states how
far the scan came, and the next page continues there.

Left to the planner, a page of 600,000 jobs took SQLite 0.3 s for a status that no job has, and 1 s for a
status at one site, which along these paths are 1 and 40 ms. PostgreSQL chose well, but nothing bounds what it
reads for a column without an index.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    and_,
    case,
    func,
    literal,
    select,
    text,
    true,
    union_all,
)

from cs_config.options import bounds
from requirements.errors import InvalidRequest, Problem, require_names
from requirements.states import FINAL, JobStatus
from taskqueue import ownership
from taskqueue.jobs import grid_jobs, jobs
from taskqueue.jobs.grid_jobs import LocalJobsStatus
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import JobChange
from taskqueue.ownership import OwnershipFilter
from taskqueue.schema.tables import ENDED, LIVING, job_waits
from taskqueue.schema.tables import jobs as table

#: A condition on a text: its value, or one of several.
Words = str | frozenset[str] | None
#: Rows of groups that are in memory at once.
_READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelector:
    """Conditions on jobs; None: no condition, an empty set: matches nothing."""

    job_ids: frozenset[int] | None = None
    vos: frozenset[str] | None = None
    owner: Words = None
    owner_group: Words = None
    statuses: frozenset[JobStatus] | None = None
    minor_status: Words = None
    application_status: Words = None
    local_statuses: frozenset[LocalJobsStatus] | None = None  #: of grid jobs; changes do not have it
    sites: frozenset[str] | None = None
    submit_pool: str | None = None
    job_name: Words = None
    job_type: Words = None
    job_group: Words = None
    submitted_since: datetime | None = None
    submitted_before: datetime | None = None
    updated_since: datetime | None = None  #: changed its status then or later
    updated_before: datetime | None = None
    any_of: tuple[OwnershipFilter, ...] = ()  #: at least one of these, if there are any

    @property
    def is_met_by_none(self) -> bool:
        """Whether an empty set excludes every job."""
        return frozenset() in (self.job_ids, self.vos, self.statuses, self.local_statuses, self.sites)

    def includes(self, job: JobChange) -> bool:
        """Whether a job fulfils the conditions with the status that it changed to."""
        sets: tuple[tuple[frozenset[Any] | None, object], ...] = (
            *((self.job_ids, job.job_id), (self.vos, job.vo)),
            *((self.statuses, job.status), (self.sites, job.site)),
        )
        values: tuple[tuple[Words, str | None], ...] = (
            *((self.owner, job.owner), (self.owner_group, job.owner_group)),
            *((self.minor_status, job.minor_status), (self.application_status, job.application_status)),
            (self.submit_pool, job.submit_pool),
            *((self.job_name, job.job_name), (self.job_type, job.job_type), (self.job_group, job.job_group)),
        )
        return (
            all(wanted is None or value in wanted for wanted, value in sets)
            and all(_fits(wanted, value) for wanted, value in values)
            and _is_within(job.submitted_at, self.submitted_since, self.submitted_before)
            and _is_within(job.at, self.updated_since, self.updated_before)
            and (
                not self.any_of
                or any(each.includes(vo=job.vo, owner=job.owner, site=job.site) for each in self.any_of)
            )
        )

    def clauses(self, of: FromClause = table) -> list[ColumnElement[bool]]:
        """SQL conditions on the table of jobs, or on a selection from it."""
        wanted: dict[ColumnElement[Any], object] = {
            of.c.job_id: self.job_ids,
            of.c.vo: self.vos,
            of.c.status: self.statuses,
            of.c.site: self.sites,
            of.c.owner: self.owner,
            of.c.owner_group: self.owner_group,
            of.c.minor_status: self.minor_status,
            of.c.application_status: self.application_status,
            of.c.submit_pool: self.submit_pool,
            of.c.job_name: self.job_name,
            of.c.job_type: self.job_type,
            of.c.job_group: self.job_group,
        }
        clauses = ownership.match_values(wanted)
        for column, since, before in (
            (of.c.submitted_at, self.submitted_since, self.submitted_before),
            (of.c.updated_at, self.updated_since, self.updated_before),
        ):
            if since is not None:
                clauses.append(column >= since)
            if before is not None:
                clauses.append(column < before)
        if self.local_statuses is not None:
            clauses.append(grid_jobs.match_latest(of, self.local_statuses))
        return clauses + ownership.match_any(self.any_of, vo=of.c.vo, at=of.c.site.in_, owner=of.c.owner)


def _fits(wanted: Words, value: str | None) -> bool:
    return wanted in (None, value) or (isinstance(wanted, frozenset) and value in wanted)


def _is_within(at: datetime, since: datetime | None, before: datetime | None) -> bool:
    return (since is None or at >= since) and (before is None or at < before)


#: Rows scanned by one search, over all its index paths.
MAX_SCANNED_ROWS = 100_000
#: Index paths of one search; an owner without a VO has one for each VO and status.
_MAX_PATHS = 200

#: The part of a filter that an index covers, as a condition.
IndexPath = ColumnElement[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Result of one search."""

    jobs: Sequence[Job]
    next: int | None  #: id after which the next page continues; None: no more
    is_cut: bool  #: stopped by the scan limit, not because the page was full


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPaths:
    """Plan of a search: conditions covered by indexes, and the rest that is tested on each row."""

    ways: Sequence[IndexPath]
    rest: JobSelector


def read_page(
    conn: Connection, which: JobSelector, *, limit: int, after: int | None = None, oldest_first: bool = False
) -> SearchPage:
    """A page of jobs by id, newest first by default; `after` is `next` of the previous page."""
    found = plan_paths(conn, which)
    if not found.ways:
        return SearchPage(jobs=(), next=None, is_cut=False)
    stretches = [_select_stretch(way, after, oldest_first=oldest_first) for way in found.ways]
    rows = max(limit + 1, MAX_SCANNED_ROWS // len(stretches))
    statement = union_all(*[_select_page(each, found.rest, rows, limit + 1) for each in stretches])
    page = [jobs.from_row(dict(row)) for row in conn.execute(statement).mappings()]
    page.sort(key=lambda job: job.job_id, reverse=not oldest_first)
    is_whole = len(stretches) == 1 and len(page) > limit
    end = None if is_whole else _find_end(conn, stretches, found.rest, rows, oldest_first=oldest_first)
    return _cut_page(page, end, limit, oldest_first=oldest_first)


#: Columns that a list may be sorted by, beside the id.
SORT_COLUMNS = (
    *("job_name", "job_type", "job_group", "status", "minor_status", "vo", "owner", "owner_group", "site"),
    *("priority", "submitted_at", "updated_at", "started_at", "ended_at"),
)


def read_sorted(
    conn: Connection, which: JobSelector, *, by: str, descending: bool, limit: int, skip: int = 0
) -> SearchPage:
    """A page of jobs by one of `SORT_COLUMNS` or the id, without a value last.

    `next` is the `skip` of the next page.

    Only the first `MAX_SCANNED_ROWS` rows of the search are sorted: `is_cut` if there may be more.
    """
    require_names("sort", [by], (*SORT_COLUMNS, "job_id"))
    found = plan_paths(conn, which)
    if not found.ways:
        return SearchPage(jobs=(), next=None, is_cut=False)
    stretches = [_select_stretch(way, None, oldest_first=False) for way in found.ways]
    rows = max(1, MAX_SCANNED_ROWS // len(stretches))
    seen = union_all(*[_select_page(each, found.rest, rows, rows) for each in stretches]).subquery()
    column = seen.c[by]
    order = [column.is_(None), column.desc() if descending else column, seen.c.job_id.desc()]
    statement = select(seen).order_by(*order).offset(skip).limit(limit + 1)
    page = [jobs.from_row(dict(row)) for row in conn.execute(statement).mappings()]
    last = [each.with_only_columns(table.c.job_id).offset(rows).limit(1).subquery() for each in stretches]
    is_cut = conn.execute(union_all(*[select(each) for each in last]).limit(1)).first() is not None
    return SearchPage(jobs=page[:limit], next=skip + limit if len(page) > limit else None, is_cut=is_cut)


def plan_paths(conn: Connection, which: JobSelector) -> IndexPaths:
    """Choose the indexes that cover most of a filter; without paths no job can match."""
    if which.is_met_by_none:
        return IndexPaths(ways=[], rest=which)
    statuses = sorted(JobStatus if which.statuses is None else which.statuses)
    if which.job_ids is not None:
        return IndexPaths(ways=[table.c.job_id.in_(sorted(which.job_ids))], rest=replace(which, job_ids=None))
    if isinstance(which.owner, str):
        vos = sorted(ownership.list_vos(conn) if which.vos is None else which.vos)
        if len(vos) * len(statuses) <= _MAX_PATHS:
            of_owner = table.c.owner == which.owner
            rest = replace(which, vos=None, owner=None, statuses=None)
            each = [and_(table.c.vo == vo, of_owner, by) for vo in vos for by in _list_status_paths(statuses)]
            return IndexPaths(ways=each, rest=rest)
    if which.submit_pool is not None:
        in_pool = table.c.submit_pool == which.submit_pool
        rest = replace(which, submit_pool=None, statuses=None)
        return IndexPaths(ways=[and_(in_pool, by) for by in _list_status_paths(statuses)], rest=rest)
    if which.statuses is not None:
        parts = [text(ENDED if status in FINAL else LIVING) for status in statuses]
        each = [and_(by, part) for by, part in zip(_list_status_paths(statuses), parts, strict=True)]
        return IndexPaths(ways=each, rest=replace(which, statuses=None))
    return IndexPaths(ways=[true()], rest=which)


def _list_status_paths(statuses: Iterable[JobStatus]) -> list[IndexPath]:
    return [table.c.status == status.value for status in statuses]


def _select_stretch(way: IndexPath, after: int | None, *, oldest_first: bool) -> Select[tuple[int]]:
    """Rows of one index path, from the end of the previous page on."""
    order = table.c.job_id if oldest_first else table.c.job_id.desc()
    stretch = select(*jobs.COLUMNS).where(way).order_by(order)
    if after is None:
        return stretch
    return stretch.where(table.c.job_id > after if oldest_first else table.c.job_id < after)


def _select_page(stretch: Select[tuple[int]], rest: JobSelector, rows: int, limit: int) -> Select[tuple[int]]:
    """The first matches among so many rows of an index path; unsorted, so that the scan stops early."""
    along = stretch.limit(rows).subquery()
    return select(select(along).where(*rest.clauses(along)).limit(limit).subquery())


def _find_end(
    conn: Connection,
    stretches: Sequence[Select[tuple[int]]],
    rest: JobSelector,
    rows: int,
    *,
    oldest_first: bool,
) -> int | None:
    """The id up to which all index paths were scanned; None: all were scanned completely."""
    if not rest.clauses():
        return None
    last = [each.with_only_columns(table.c.job_id).offset(rows - 1).limit(1).subquery() for each in stretches]
    ends = union_all(*[select(each) for each in last]).subquery()
    nearest = func.min if oldest_first else func.max
    end: int | None = conn.execute(select(nearest(ends.c.job_id))).scalar_one()
    return end


def _cut_page(page: Sequence[Job], end: int | None, limit: int, *, oldest_first: bool) -> SearchPage:
    """Cut the page where the first path ended: behind that point it may lack jobs of that path."""
    if end is not None:
        page = [job for job in page if (job.job_id <= end if oldest_first else job.job_id >= end)]
    if len(page) > limit:
        return SearchPage(jobs=page[:limit], next=page[limit - 1].job_id, is_cut=False)
    return SearchPage(jobs=page, next=end, is_cut=end is not None)


#: Columns that a summary may group by.
SUMMARY_COLUMNS = (
    *("application_status", "job_group", "job_name", "job_type", "minor_status", "owner", "owner_group"),
    *("site", "status", "submit_pool", "task_queue", "vo"),
)


def list_jobs(conn: Connection, which: JobSelector, *, limit: int, after: int | None = None) -> list[Job]:
    """A page of jobs, newest first; `after` is the last id of the previous page."""
    found: list[Job] = []
    while True:
        seen = read_page(conn, which, limit=limit - len(found), after=after)
        found += seen.jobs
        if seen.next is None or len(found) == limit:
            return found
        after = seen.next


def count_by_columns(
    conn: Connection, by: Sequence[str], which: JobSelector, *, most: int = bounds.SUMMARY_GROUPS
) -> Counter[tuple[str | None, ...]]:
    """Number of jobs for each combination of values of the columns `by`.

    InvalidRequest if a column is unknown, or there are more than `most` combinations.
    """
    rows = _read_groups(conn, by, which, func.count(), most=most + 1)
    if len(rows) > most:
        message = f"{','.join(by)} makes more than {most:,} groups; count fewer jobs, or by fewer columns"
        raise InvalidRequest([Problem(path="by", message=message)])
    return Counter({tuple(row[:-1]): row[-1] for row in rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGroups:
    """The groups with the most jobs, by the values of their columns, and what was left out."""

    jobs: Mapping[tuple[str | None, ...], int]
    more_groups: int
    more_jobs: int


def count_largest(conn: Connection, by: Sequence[str], which: JobSelector, *, most: int) -> LargestGroups:
    """Number of jobs as `count_by_columns`, for at most so many combinations of values."""
    groups, everything = func.count().over(), func.sum(func.count()).over()
    rows = _read_groups(conn, by, which, func.count(), groups, everything, most=most, largest_first=True)
    found = {tuple(row[:-3]): row[-3] for row in rows}
    all_groups, all_jobs = (rows[0][-2], int(rows[0][-1])) if rows else (0, 0)
    return LargestGroups(
        jobs=found, more_groups=all_groups - len(found), more_jobs=all_jobs - sum(found.values())
    )


def list_reschedules(
    conn: Connection, by: Sequence[str], which: JobSelector
) -> Iterator[tuple[tuple[str | None, ...], int, int]]:
    """The values of each group, its jobs and their reschedulings; the largest group first."""
    columns = [_get_column(name) for name in by]
    reschedules = func.sum(table.c.reschedules)
    statement = select(*columns, func.count(), reschedules).where(*which.clauses()).group_by(*columns)
    statement = statement.order_by(func.count().desc(), *columns).execution_options(yield_per=_READ_AT_ONCE)
    for *values, number, again in conn.execute(statement):
        yield tuple(values), number, int(again)


def _read_groups(
    conn: Connection,
    by: Sequence[str],
    which: JobSelector,
    *sums: ColumnElement[int],
    most: int,
    largest_first: bool = False,
) -> Sequence[Row[*tuple[Any, ...]]]:
    require_names("by", by, SUMMARY_COLUMNS)
    columns = [_get_column(name) for name in by]
    statement = select(*columns, *sums).where(*which.clauses()).group_by(*columns).limit(most)
    if largest_first:
        statement = statement.order_by(sums[0].desc(), *columns)
    return conn.execute(statement).all()


def sum_waits(
    conn: Connection, by: Sequence[str], which: JobSelector
) -> Mapping[tuple[str | None, ...], Mapping[str, float]]:
    """Wait times of ended jobs in seconds by cause, grouped as in `count_by_columns`."""
    columns = [_get_column(name) for name in by]
    statement = (
        select(*columns, job_waits.c.cause, func.sum(job_waits.c.seconds))
        .join(table, table.c.job_id == job_waits.c.job_id)
        .where(*which.clauses())
        .group_by(*columns, job_waits.c.cause)
    )
    found: defaultdict[tuple[str | None, ...], dict[str, float]] = defaultdict(dict)
    for *values, cause, seconds in conn.execute(statement):
        found[tuple(values)][cause] = round(float(seconds), 3)
    return found


def _get_column(name: str) -> ColumnElement[str]:
    return table.c["task_queue_id" if name == "task_queue" else name]


#: Jobs counted for each status; beyond that the count is marked "more".
MAX_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class JobCount:
    """A number of jobs."""

    jobs: int
    more: bool = False  #: a lower bound: counting stopped here

    def __add__(self, other: "JobCount") -> "JobCount":
        return JobCount(self.jobs + other.jobs, self.more or other.more)


def count_by_status(
    conn: Connection, which: JobSelector, *, most: int = MAX_COUNTED
) -> Mapping[JobStatus, JobCount]:
    """Number of jobs of each status that has any, scanning at most `most` rows for each."""
    statuses = sorted(JobStatus if which.statuses is None else which.statuses)
    if which.owner is not None and which.vos is None:
        which = replace(which, vos=frozenset(ownership.list_vos(conn)))  # once, not for each status
    parts: list[Select[tuple[str, int, int]]] = []
    for status in statuses:
        plan = plan_paths(conn, replace(which, statuses=frozenset({status})))
        parts += [_select_count(way, plan.rest, status, most) for way in plan.ways]
    found: dict[JobStatus, JobCount] = {}
    for row in conn.execute(union_all(*parts)) if parts else ():
        status = JobStatus(row.status)
        count = JobCount(min(row.met, most), row.seen > most)
        found[status] = found.get(status, JobCount(0)) + count
    return {status: count for status, count in found.items() if count.jobs or count.more}


def sum_counts(counts: Mapping[JobStatus, JobCount]) -> JobCount:
    """The total."""
    return sum(counts.values(), JobCount(0))


def _select_count(
    way: IndexPath, rest: JobSelector, status: JobStatus, most: int
) -> Select[tuple[str, int, int]]:
    """Count along one index path, in its order.

    The order is for the planner: otherwise it may scan the table from its start, where none of the rows
    may be.
    """
    is_asked = bool(rest.clauses())
    columns = jobs.COLUMNS if is_asked else [table.c.job_id]
    along = select(*columns).where(way).order_by(table.c.job_id.desc()).limit(most + 1).subquery()
    met = case((and_(*rest.clauses(along)), 1), else_=0) if is_asked else literal(1)
    return select(
        literal(status.value).label("status"),
        func.count().label("seen"),
        func.coalesce(func.sum(met), 0).label("met"),
    ).select_from(along)
