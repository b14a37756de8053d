"""Occupancy of sites, CEs and queues: our jobs and pilots there now, in the states that gateways count."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from cs_config.options import place_limits
from cs_config.tree.address import QueueAddress
from requirements.states import PILOT_ACTIVE, JobStatus, read_status
from requirements.values import fold
from taskqueue.db import sql
from taskqueue.schema.tables import ATTEMPT_AT, attempts, jobs, pilots
from taskqueue.sites import scopes

_site, _ce, _queue = ATTEMPT_AT
_NOT_BEGUN = attempts.c.started_at.is_(None)
#: `closed_as` of an attempt whose job was rescheduled, which its pilot learns later.
TAKEN_AWAY: Final = "rescheduled"
#: An attempt that was taken away before its start; until the end of its lease it may be on its way to the
#: site. No bind, so that the planner finds the partial index.
WAS_ON_ITS_WAY = and_(attempts.c.closed_as == literal_column(f"'{TAKEN_AWAY}'"), _NOT_BEGUN)

OCCUPANCY = (
    select(
        func.count().label("jobs"),
        func.count().filter(_NOT_BEGUN).label("submitting"),
        # The job of an attempt that was taken away may be completing elsewhere.
        func.count()
        .filter(attempts.c.closed_at.is_(None), jobs.c.status == JobStatus.COMPLETING.value)
        .label("gathering"),
    )
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(
        or_(
            attempts.c.closed_at.is_(None),
            and_(WAS_ON_ITS_WAY, attempts.c.lease_expires_at >= bindparam("now")),
        ),
        _site == bindparam("site"),
        or_(bindparam("ce") == "", _ce == bindparam("ce")),
        or_(bindparam("queue") == "", _queue == bindparam("queue")),
    )
)

#: Values of job attributes that limits can count; without a pool it is empty.
ATTRIBUTE_COLUMNS: Mapping[str, ColumnElement[str]] = {
    attribute: func.coalesce(jobs.c[name], "") if jobs.c[name].nullable else jobs.c[name]
    for attribute, name in place_limits.ATTRIBUTES.items()
}
#: Processors of attempts; one without a record of them has one.
CORES = func.sum(func.coalesce(attempts.c.processors, 1))
BY_VALUE_IN_GRID = {
    attribute: select(column.label("value"), jobs.c.vo, func.count().label("jobs"), CORES.label("cores"))
    .join(attempts, attempts.c.job_id == jobs.c.job_id)
    .where(attempts.c.closed_at.is_(None))
    .group_by(column, jobs.c.vo)
    for attribute, column in ATTRIBUTE_COLUMNS.items()
}
BY_VALUE = {
    attribute: everywhere.where(
        _site == bindparam("site"), or_(bindparam("ce") == "", _ce == bindparam("ce"))
    )
    for attribute, everywhere in BY_VALUE_IN_GRID.items()
}


BY_VO = (
    select(jobs.c.vo, jobs.c.status, func.count().label("jobs"))
    .join(attempts, attempts.c.job_id == jobs.c.job_id)
    .where(attempts.c.closed_at.is_(None), sql.is_listed(_site))
    .group_by(jobs.c.vo, jobs.c.status)
    .order_by(jobs.c.vo, jobs.c.status)
)


def _count_by_queue(table: Table, condition: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    place = (table.c.vo, table.c.site, table.c.ce, table.c.queue)
    return select(*place, func.count().label("number")).where(condition).group_by(*place)


JOBS_BY_QUEUE = _count_by_queue(attempts, attempts.c.closed_at.is_(None))
PILOTS_BY_QUEUE = _count_by_queue(pilots, pilots.c.status.in_(sorted(PILOT_ACTIVE)))


@dataclass(frozen=True, slots=True)
class JobsAndCores:
    """Jobs with an open attempt, and the processors that these have; or by how much both change."""

    jobs: int = 0
    cores: int = 0

    def __add__(self, other: "JobsAndCores") -> "JobsAndCores":
        return JobsAndCores(self.jobs + other.jobs, self.cores + other.cores)

    def __sub__(self, other: "JobsAndCores") -> "JobsAndCores":
        return JobsAndCores(self.jobs - other.jobs, self.cores - other.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOccupancy:
    """Jobs and pilots of a VO at a queue."""

    jobs: int  #: assigned to pilots
    pilots: int  #: submitted and not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Numbers of jobs assigned to pilots."""

    jobs: int
    submitting: int  #: matched, not started; with those taken from a pilot that may be on its way
    gathering: int  #: the payload ended, its output is being transferred


def count_jobs(conn: Connection, scope: str, *, now: datetime) -> Occupancy:
    """Jobs at a scope, `Site`, `Site/CE` or `Site/CE/Queue`, including killed ones that are ending."""
    site, ce, queue = (*fold(scope).split("/"), "", "")[:3]
    row = conn.execute(OCCUPANCY, {"site": site, "ce": ce, "queue": queue, "now": now}).one()
    return Occupancy(**row._asdict())


def count_by_value(conn: Connection, scope: str, attribute: str) -> Mapping[tuple[str, str], JobsAndCores]:
    """The jobs at a site or CE, or at all sites, now, by VO and value of the attribute."""
    site, ce = (*fold(scope).split("/"), "")[:2]
    rows = (
        conn.execute(BY_VALUE_IN_GRID[attribute])
        if site == scopes.GRID
        else conn.execute(BY_VALUE[attribute], {"site": site, "ce": ce})
    )
    return {(row.vo, row.value): JobsAndCores(row.jobs, row.cores) for row in rows}


def count_by_vo(conn: Connection, sites: Collection[str]) -> Mapping[str, Mapping[JobStatus, int]]:
    """Number of jobs of each VO at some sites now, by status."""
    found: defaultdict[str, dict[JobStatus, int]] = defaultdict(dict)
    for vo, status, number in conn.execute(BY_VO, {"ids": sorted(map(fold, sites))}):
        found[vo][read_status(status)] = number
    return found


def count_by_queue(conn: Connection) -> Mapping[tuple[str, QueueAddress], QueueOccupancy]:
    """Jobs and pilots at each queue now, by VO."""
    jobs_there = dict(_list_numbers(conn.execute(JOBS_BY_QUEUE)))
    pilots_there = dict(_list_numbers(conn.execute(PILOTS_BY_QUEUE)))
    return {
        key: QueueOccupancy(jobs=jobs_there.get(key, 0), pilots=pilots_there.get(key, 0))
        for key in jobs_there.keys() | pilots_there.keys()
    }


def _list_numbers(rows: Iterable[Row[Any]]) -> Iterator[tuple[tuple[str, QueueAddress], int]]:
    for row in rows:
        yield (row.vo, QueueAddress(site=row.site, ce=row.ce, queue=row.queue)), row.number
