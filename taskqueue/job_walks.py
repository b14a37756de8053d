"""Looking for jobs along an index, newest or oldest first, no further than is asked.

Of ten million jobs a question may be met by three, or by none. So a look goes along the indexes that end with
the id and carry most of what is asked, one way for each status, and stops after so many rows; what it did not
come to is said, and the next look goes on there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select, true, union_all

from taskqueue import jobs, known_vos
from taskqueue.job_filter import Filter
from taskqueue.jobs import Job
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import ENDED, LIVING
from taskqueue.tables import jobs as table

#: Rows that a look goes along at most, on all its ways together.
MOST_ROWS = 100_000
#: Ways of one look; an owner without a VO has one for each VO and status.
_MOST_WAYS = 200

#: What an index carries, as a condition.
Way = ColumnElement[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look found."""

    jobs: Sequence[Job]
    next: int | None  #: id after which the next look goes on; None: there is no more
    is_cut: bool  #: it ended because it had gone along enough rows, not because the page was full


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How to look for jobs: what indexes carry, and what is left to ask of each row."""

    ways: Sequence[Way]
    rest: Filter


def look(
    conn: Connection, which: Filter, *, limit: int, after: int | None = None, oldest_first: bool = False
) -> Seen:
    """A page of jobs by id.

    Args:
        conn: Any connection.
        which: The jobs.
        limit: How many at most.
        after: `next` of the look before.
        oldest_first: Else the newest come first.
    """
    found = ways(conn, which)
    if not found.ways:
        return Seen(jobs=(), next=None, is_cut=False)
    stretches = [_stretch(way, after, oldest_first=oldest_first) for way in found.ways]
    rows = max(limit + 1, MOST_ROWS // len(stretches))
    statement = union_all(*[_page(each, found.rest, rows, limit + 1) for each in stretches])
    page = [jobs.from_row(dict(row)) for row in conn.execute(statement).mappings()]
    page.sort(key=lambda job: job.job_id, reverse=not oldest_first)
    is_whole = len(stretches) == 1 and len(page) > limit
    end = None if is_whole else _end(conn, stretches, found.rest, rows, oldest_first=oldest_first)
    return _cut(page, end, limit, oldest_first=oldest_first)


def ways(conn: Connection, which: Filter) -> Ways:
    """The indexes that carry most of a question; without ways no job can meet it."""
    if which.is_met_by_none:
        return Ways(ways=[], rest=which)
    statuses = sorted(JobStatus if which.statuses is None else which.statuses)
    if which.job_ids is not None:
        return Ways(ways=[table.c.job_id.in_(sorted(which.job_ids))], rest=replace(which, job_ids=None))
    if which.owner is not None:
        vos = sorted(known_vos.stored(conn) if which.vos is None else which.vos)
        if len(vos) * len(statuses) <= _MOST_WAYS:
            of_owner = table.c.owner == which.owner
            rest = replace(which, vos=None, owner=None, statuses=None)
            each = [and_(table.c.vo == vo, of_owner, by) for vo in vos for by in _by(statuses)]
            return Ways(ways=each, rest=rest)
    if which.submit_pool is not None:
        in_pool = table.c.submit_pool == which.submit_pool
        rest = replace(which, submit_pool=None, statuses=None)
        return Ways(ways=[and_(in_pool, by) for by in _by(statuses)], rest=rest)
    if which.statuses is not None:
        parts = [ENDED if status in FINAL else LIVING for status in statuses]
        each = [and_(by, part) for by, part in zip(_by(statuses), parts, strict=True)]
        return Ways(ways=each, rest=replace(which, statuses=None))
    return Ways(ways=[true()], rest=which)


def _by(statuses: Iterable[JobStatus]) -> list[Way]:
    return [table.c.status == status.value for status in statuses]


def _stretch(way: Way, after: int | None, *, oldest_first: bool) -> Select[tuple[int]]:
    """One way from where the look before ended."""
    order = table.c.job_id if oldest_first else table.c.job_id.desc()
    stretch = select(*jobs.COLUMNS).where(way).order_by(order)
    if after is None:
        return stretch
    return stretch.where(table.c.job_id > after if oldest_first else table.c.job_id < after)


def _page(stretch: Select[tuple[int]], rest: Filter, rows: int, limit: int) -> Select[tuple[int]]:
    """The first jobs on one way that meet the rest, among so many rows; unsorted, so it ends early."""
    along = stretch.limit(rows).subquery()
    return select(select(along).where(*rest.clauses(along)).limit(limit).subquery())


def _end(
    conn: Connection, stretches: Sequence[Select[tuple[int]]], rest: Filter, rows: int, *, oldest_first: bool
) -> int | None:
    """The last id that all ways came to; None: they were gone to their ends."""
    if not rest.clauses():
        return None
    last = [each.with_only_columns(table.c.job_id).offset(rows - 1).limit(1).subquery() for each in stretches]
    ends = union_all(*[select(each) for each in last]).subquery()
    nearest = func.min if oldest_first else func.max
    end: int | None = conn.execute(select(nearest(ends.c.job_id))).scalar_one()
    return end


def _cut(page: Sequence[Job], end: int | None, limit: int, *, oldest_first: bool) -> Seen:
    """The page as far as it is whole: behind the end of one way the others may have found more."""
    if end is not None:
        page = [job for job in page if (job.job_id <= end if oldest_first else job.job_id >= end)]
    if len(page) > limit:
        return Seen(jobs=page[:limit], next=page[limit - 1].job_id, is_cut=False)
    return Seen(jobs=page, next=end, is_cut=end is not None)
