"""How many jobs there are in each status, counted no further than is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Select, and_, case, func, literal, select, union_all

from taskqueue import job_walks, jobs, known_vos
from taskqueue.job_filter import Filter
from taskqueue.job_walks import Way
from taskqueue.states import JobStatus
from taskqueue.tables import jobs as table

#: Of each status; a number beyond says "more".
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Count:
    """A number of jobs."""

    jobs: int
    more: bool = False  #: there may be more than these: it was not counted on

    def __add__(self, other: "Count") -> "Count":
        return Count(self.jobs + other.jobs, self.more or other.more)


def by_status(conn: Connection, which: Filter, *, most: int = MOST) -> Mapping[JobStatus, Count]:
    """The jobs of each status that has any, going along `most` rows for each."""
    statuses = sorted(JobStatus if which.statuses is None else which.statuses)
    if which.owner is not None and which.vos is None:
        which = replace(which, vos=frozenset(known_vos.stored(conn)))  # looked up once, not for each status
    parts = [part for status in statuses for part in _counted(conn, which, status, most)]
    found: dict[JobStatus, Count] = {}
    for row in conn.execute(union_all(*parts)) if parts else ():
        status = JobStatus(row.status)
        count = Count(min(row.met, most), row.seen > most)
        found[status] = found.get(status, Count(0)) + count
    return {status: count for status, count in found.items() if count.jobs or count.more}


def total(counts: Mapping[JobStatus, Count]) -> Count:
    """All of them together."""
    return sum(counts.values(), Count(0))


def _counted(
    conn: Connection, which: Filter, status: JobStatus, most: int
) -> list[Select[tuple[str, int, int]]]:
    found = job_walks.ways(conn, replace(which, statuses=frozenset({status})))
    return [_count(way, found.rest, status, most) for way in found.ways]


def _count(way: Way, rest: Filter, status: JobStatus, most: int) -> Select[tuple[str, int, int]]:
    """A count that goes along one way, in its order.

    Counting needs none, but a planner that takes the rows of a status to lie everywhere would rather read the
    table from its start, where there may be none of them.
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
