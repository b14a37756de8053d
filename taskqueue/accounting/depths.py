"""Waiting jobs that sites and queues could run, sampled over time.

A job counts at each site and queue that could run it, so numbers of several places do not add up; those of
several VOs do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from taskqueue import ownership
from taskqueue.accounting import time_series
from taskqueue.schema.tables import queue_depths

#: Between two samples.
INTERVAL: Final = timedelta(minutes=10)
#: In the place of a site and of a queue: all of them.
ALL: Final = ""

_at = queue_depths.c.at
SAMPLED = select(func.max(_at, type_=_at.type))
SAMPLES = select(_at).where(queue_depths.c.site == ALL).order_by(_at)
REMOVE_FROM = delete(queue_depths).where(_at >= bindparam("the_time", type_=_at.type))
LARGEST = (
    select(queue_depths.c.site, queue_depths.c.vo, queue_depths.c.jobs)
    .where(
        _at == SAMPLED.scalar_subquery(),
        _at >= bindparam("since"),
        queue_depths.c.queue == ALL,
        queue_depths.c.site != ALL,
    )
    .order_by(queue_depths.c.jobs.desc(), queue_depths.c.site, queue_depths.c.vo)
    .limit(bindparam("most"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """Waiting jobs of a VO that a site or queue could run."""

    site: str  #: `ALL`: all waiting jobs
    queue: str  #: `CE/Queue`; `ALL`: the site, where a job that several of its queues could run counts once
    vo: str
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSeries:
    """Data of a plot: equal steps of time, the oldest first."""

    begins: Sequence[datetime]  #: of each step
    #: The last sample in each step, by site, or by queue of one site; None: no sample.
    jobs: Mapping[str, Sequence[int | None]]


def truncate(now: datetime) -> datetime:
    """The time of the sample that is due."""
    return time_series.list_steps(now, now, INTERVAL)[0]


def read_latest(conn: Connection) -> datetime | None:
    """Time of the latest sample."""
    latest: datetime | None = conn.execute(SAMPLED).scalar_one()
    return latest


def read_largest(conn: Connection, *, since: datetime, most: int) -> Mapping[tuple[str, ...], int]:
    """The largest depths of sites in the latest sample, by VO and site; none if that is older."""
    rows = conn.execute(LARGEST, {"since": since, "most": most})
    return {(row.vo, row.site): row.jobs for row in rows}


def store_sample(conn: Connection, at: datetime, found: Collection[QueueDepth]) -> None:
    """Store the latest sample; places without such jobs have no row, and the time has one in any case.

    Later ones are removed: the clock of the database was set back since.
    """
    conn.execute(REMOVE_FROM, {"the_time": at})
    total = QueueDepth(site=ALL, queue=ALL, vo=ALL, jobs=0)
    rows = [
        {"at": at, "site": each.site, "queue": each.queue, "vo": each.vo, "jobs": each.jobs}
        for each in (total, *found)
    ]
    conn.execute(insert(queue_depths), rows)


def read_sample(conn: Connection, vos: Collection[str] | None) -> Mapping[tuple[str, str], int]:
    """Numbers of the latest sample by site and queue (`ALL`: the site), summed over VOs (None: all)."""
    statement = (
        select(queue_depths.c.site, queue_depths.c.queue, func.sum(queue_depths.c.jobs))
        .where(
            _at == SAMPLED.scalar_subquery(),
            queue_depths.c.site != ALL,
            *ownership.match_values({queue_depths.c.vo: vos}),
        )
        .group_by(queue_depths.c.site, queue_depths.c.queue)
    )
    return {(site, queue): int(jobs) for site, queue, jobs in conn.execute(statement)}


def read_depths(
    conn: Connection,
    *,
    sites: Collection[str] | None = None,
    site: str | None = None,
    vos: Collection[str] | None = None,
    since: datetime,
    until: datetime,
    step: timedelta,
) -> DepthSeries:
    """Depths of some sites (None: all), or those of one site and its queues, summed over VOs (None: all).

    Steps as in `time_series.read_series`, each at least `INTERVAL`.
    """
    begins = time_series.list_steps(since, until, step)
    times = conn.execute(SAMPLES.where(_at >= begins[0])).scalars()
    last = {(at - begins[0]) // step: at for at in times}
    if site is None:
        label, which = queue_depths.c.site, {queue_depths.c.queue: ALL, queue_depths.c.site: sites}
    else:
        label, which = queue_depths.c.queue, {queue_depths.c.site: site}
    statement = (
        select(_at, label.label("place"), func.sum(queue_depths.c.jobs).label("jobs"))
        .where(
            _at.in_(list(last.values())),
            queue_depths.c.site != ALL,
            *ownership.match_values(which | {queue_depths.c.vo: vos}),
        )
        .group_by(_at, label)
    )
    known = {at: place for place, at in last.items()}
    jobs: dict[str, list[int | None]] = {}
    for row in conn.execute(statement):
        empty = [0 if place in last else None for place in range(len(begins))]
        jobs.setdefault(row.place, empty)[known[row.at]] = int(row.jobs)
    return DepthSeries(begins=begins, jobs=jobs)
