"""How many jobs there are in each status, counted no further than is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Select, and_, case, func, literal, select, union_all

from taskqueue import job_walks, jobs
from taskqueue.job_filter import Filter
from taskqueue.job_walks import Ways
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import ENDED
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
    parts = [part for status in statuses for part in _counts(_ways(conn, which, status), status, most)]
    found: dict[JobStatus, Count] = {}
    for row in conn.execute(union_all(*parts)) if parts else ():
        status = JobStatus(row.status)
        count = Count(min(row.met, most), row.seen > most)
        found[status] = found.get(status, Count(0)) + count
    return {status: count for status, count in found.items() if count.jobs or count.more}


def total(counts: Mapping[JobStatus, Count]) -> Count:
    """All of them together."""
    return sum(counts.values(), Count(0))


def _ways(conn: Connection, which: Filter, status: JobStatus) -> Ways:
    """The ways to the jobs of a status; without anything better, the index of those that have ended."""
    one = replace(which, statuses=frozenset({status}))
    found = job_walks.ways(conn, one)
    if found.rest.statuses is not None and which.job_ids is None and status in FINAL:
        ended = and_(table.c.status == status.value, ENDED)
        return Ways(ways=[ended], rest=replace(which, statuses=None))
    return found


def _counts(found: Ways, status: JobStatus, most: int) -> list[Select[tuple[str, int, int]]]:
    counts = []
    is_asked = bool(found.rest.clauses())
    for way in found.ways:
        columns = jobs.COLUMNS if is_asked else [table.c.job_id]
        along = select(*columns).where(way).limit(most + 1).subquery()
        met = case((and_(*found.rest.clauses(along)), 1), else_=0) if is_asked else literal(1)
        counts.append(
            select(
                literal(status.value).label("status"),
                func.count().label("seen"),
                func.coalesce(func.sum(met), 0).label("met"),
            ).select_from(along)
        )
    return counts
