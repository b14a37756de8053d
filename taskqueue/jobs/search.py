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
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
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
from requirements.job_fields import (
    FIELDS,
    JOB_ID,
    OWNER,
    SITE,
    STATUS,
    SUBMIT_POOL,
    VO,
    AnyField,
    JobField,
    V,
)
from requirements.states import FINAL, JobStatus
from taskqueue import ownership
from taskqueue.jobs import columns, jobs
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import JobChange
from taskqueue.ownership import OwnershipFilter
from taskqueue.schema.tables import ENDED, LIVING, job_waits
from taskqueue.schema.tables import jobs as table

#: Rows of groups that are in memory at once.
_READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time from `since` on and before `before`; None: no bound."""

    since: datetime | None = None
    before: datetime | None = None

    def includes(self, at: object) -> bool:
        """Whether it is a time in this period."""
        return (
            isinstance(at, datetime)
            and (self.since is None or at >= self.since)
            and (self.before is None or at < self.before)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelector:
    """Conditions on jobs, by the names of their fields."""

    #: A job has one of the values; an empty set matches nothing.
    values: Mapping[str, frozenset[object]] = field(default_factory=dict)
    periods: Mapping[str, Period] = field(default_factory=dict)
    any_of: tuple[OwnershipFilter, ...] = ()  #: at least one of these, if there are any

    def __hash__(self) -> int:
        return hash((frozenset(self.values.items()), frozenset(self.periods.items()), self.any_of))

    def where(self, of: JobField[V], values: Iterable[V] | None) -> "JobSelector":
        """These conditions, and one of these values; None: any."""
        return self if values is None else self.narrow(of.name, values)

    def narrow(self, name: str, values: Iterable[object]) -> "JobSelector":
        """The same by the name of a field whose type was checked before."""
        own = self.values.get(name)
        both = frozenset(values) if own is None else own.intersection(values)
        return replace(self, values={**self.values, name: both})

    def between(
        self, of: JobField[datetime], since: datetime | None, before: datetime | None
    ) -> "JobSelector":
        """These conditions with other bounds of a time; None: the bound stays as it is."""
        own = self.periods.get(of.name, Period())
        period = Period(since=since or own.since, before=before or own.before)
        return replace(self, periods={**self.periods, of.name: period})

    def without(self, *fields: AnyField) -> "JobSelector":
        """The conditions on other fields."""
        names = {each.name for each in fields}
        return replace(
            self,
            values={name: values for name, values in self.values.items() if name not in names},
            periods={name: period for name, period in self.periods.items() if name not in names},
        )

    def get(self, of: JobField[V]) -> frozenset[V] | None:
        """The values of a field; None: any."""
        found = self.values.get(of.name)
        return None if found is None else frozenset(each for each in found if isinstance(each, of.type))

    @property
    def is_met_by_none(self) -> bool:
        """Whether an empty set excludes every job."""
        return frozenset() in self.values.values()

    def includes(self, change: JobChange) -> bool:
        """Whether a job fulfils the conditions with the status that it changed to."""
        job = change.fields
        vo, owner, site = (str(job[each.name]) for each in (VO, OWNER, SITE))
        return (
            all(job[name] in values for name, values in self.values.items())
            and all(period.includes(job[name]) for name, period in self.periods.items())
            and (not self.any_of or any(each.includes(vo=vo, owner=owner, site=site) for each in self.any_of))
        )

    def clauses(self, of: FromClause = table) -> list[ColumnElement[bool]]:
        """SQL conditions on the table of jobs, or on a selection from it."""
        clauses = ownership.match_values(
            {columns.COLUMNS[name](of): values for name, values in self.values.items()}
        )
        for name, period in self.periods.items():
            column = columns.COLUMNS[name](of)
            clauses += [] if period.since is None else [column >= period.since]
            clauses += [] if period.before is None else [column < period.before]
        return clauses + ownership.match_any(self.any_of, vo=of.c.vo, at=of.c.site.in_, owner=of.c.owner)


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
    seen = [_select_page(each, found.rest, rows, limit + 1).subquery() for each in stretches]
    page = _read_jobs(conn, union_all(*[select(*jobs.read_columns(each)) for each in seen]))
    page.sort(key=lambda job: job.job_id, reverse=not oldest_first)
    is_whole = len(stretches) == 1 and len(page) > limit
    end = None if is_whole else _find_end(conn, stretches, found.rest, rows, oldest_first=oldest_first)
    return _cut_page(page, end, limit, oldest_first=oldest_first)


#: Names by which a list is sorted by the id.
_BY_ID = frozenset({"job", JOB_ID.name})


def is_by_id(sort: str) -> bool:
    """Whether the order, a column after an optional `-`, is that of the ids."""
    return sort.removeprefix("-") in _BY_ID


def read_ordered(
    conn: Connection, which: JobSelector, *, sort: str, limit: int, after: int | None
) -> SearchPage:
    """A page of jobs by a column or the id, descending after a `-`; `after` is `next` of the page before."""
    by, descending = sort.removeprefix("-"), sort.startswith("-")
    if is_by_id(sort):
        return read_page(conn, which, limit=limit, after=after, oldest_first=not descending)
    skip = min(after or 0, MAX_SCANNED_ROWS)
    return read_sorted(conn, which, by=by, descending=descending, limit=limit, skip=skip)


#: Columns that a list may be sorted by, beside the id.
SORT_COLUMNS = tuple(each.name for each in FIELDS if each.is_answered and each is not JOB_ID)


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
    cut = (
        select(seen)
        .order_by(*_order(seen, by, descending=descending))
        .offset(skip)
        .limit(limit + 1)
        .subquery()
    )
    page = _read_jobs(conn, select(*jobs.read_columns(cut)).order_by(*_order(cut, by, descending=descending)))
    last = [each.with_only_columns(table.c.job_id).offset(rows).limit(1).subquery() for each in stretches]
    is_cut = conn.execute(union_all(*[select(each) for each in last]).limit(1)).first() is not None
    return SearchPage(jobs=page[:limit], next=skip + limit if len(page) > limit else None, is_cut=is_cut)


def _order(of: FromClause, by: str, *, descending: bool) -> list[ColumnElement[Any]]:
    column = columns.COLUMNS[by](of)
    return [column.is_(None), column.desc() if descending else column, of.c.job_id.desc()]


def _read_jobs(conn: Connection, statement: Executable) -> list[Job]:
    return [jobs.from_row(dict(row)) for row in conn.execute(statement).mappings()]


def plan_paths(conn: Connection, which: JobSelector) -> IndexPaths:
    """Choose the indexes that cover most of a filter; without paths no job can match."""
    if which.is_met_by_none:
        return IndexPaths(ways=[], rest=which)
    job_ids, owners, pools = which.get(JOB_ID), which.get(OWNER), which.get(SUBMIT_POOL)
    given = which.get(STATUS)
    statuses = sorted(JobStatus if given is None else given)
    if job_ids is not None:
        return IndexPaths(ways=[table.c.job_id.in_(sorted(job_ids))], rest=which.without(JOB_ID))
    if owners is not None and len(owners) == 1:
        vos = sorted(which.get(VO) or ownership.list_vos(conn))
        if len(vos) * len(statuses) <= _MAX_PATHS:
            of_owner = table.c.owner == min(owners)
            rest = which.without(VO, OWNER, STATUS)
            each = [and_(table.c.vo == vo, of_owner, by) for vo in vos for by in _list_status_paths(statuses)]
            return IndexPaths(ways=each, rest=rest)
    if pools is not None and len(pools) == 1:
        in_pool = table.c.submit_pool == min(pools)
        rest = which.without(SUBMIT_POOL, STATUS)
        return IndexPaths(ways=[and_(in_pool, by) for by in _list_status_paths(statuses)], rest=rest)
    if given is not None:
        parts = [text(ENDED if status in FINAL else LIVING) for status in statuses]
        each = [and_(by, part) for by, part in zip(_list_status_paths(statuses), parts, strict=True)]
        return IndexPaths(ways=each, rest=which.without(STATUS))
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
SUMMARY_COLUMNS = (*(each.name for each in FIELDS if each.is_counted), "task_queue")


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
    # Without it a field of attempts alone would leave the jobs out.
    statement = select(*columns, *sums).select_from(table)
    statement = statement.where(*which.clauses()).group_by(*columns).limit(most)
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
    column = table.c.task_queue_id if name == "task_queue" else columns.COLUMNS[name](table)
    return column.label(name)


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
    statuses = which.get(STATUS)
    if which.get(OWNER) is not None and which.get(VO) is None:
        which = which.where(VO, ownership.list_vos(conn))  # once, not for each status
    parts: list[Select[tuple[str, int, int]]] = []
    for status in sorted(JobStatus if statuses is None else statuses):
        plan = plan_paths(conn, which.where(STATUS, {status}))
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
