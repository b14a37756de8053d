"""Usage records: what each attempt at a site used, in the month of its end.

Measured as the accounting measures, which books the time in the hours in which it was spent instead. Attempts
are deleted with their jobs; the sums of the accounting stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Row, bindparam, func, select

from taskqueue.accounting import usage
from taskqueue.accounting.usage import Usage
from taskqueue.schema.tables import accounted_use, attempts, jobs

#: Jobs, of any site, that one page looks at.
PAGE: Final = 20_000

_PAGE = (
    select(jobs.c.job_id)
    .where(jobs.c.job_id > bindparam("after"))
    .order_by(jobs.c.job_id)
    .limit(bindparam("most"))
    .subquery()
)
LAST_OF_PAGE = select(func.max(_PAGE.c.job_id).label("last"), func.count().label("jobs"))
_CLOSED = attempts.c.closed_at
ENDED_AT_SITE = (
    select(
        *(attempts.c.job_id, attempts.c.epoch, attempts.c.vo, jobs.c.owner),
        *(attempts.c.ce, attempts.c.queue, attempts.c.processors, attempts.c.peak_ram_mb),
        *(attempts.c.started_at, attempts.c.lost_at, attempts.c.closed_at, attempts.c.request),
    )
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(
        attempts.c.job_id > bindparam("after"),
        attempts.c.job_id <= bindparam("upto"),
        attempts.c.site == bindparam("the_site"),
        attempts.c.started_at.is_not(None),
        bindparam("since", type_=_CLOSED.type) <= _CLOSED,
        bindparam("until", type_=_CLOSED.type) > _CLOSED,
    )
    .order_by(attempts.c.job_id, attempts.c.epoch)
)
_HOUR = accounted_use.c.hour
ACCOUNTED = select(func.sum(accounted_use.c.attempts)).where(
    accounted_use.c.site == bindparam("the_site"),
    bindparam("since", type_=_HOUR.type) <= _HOUR,
    bindparam("until", type_=_HOUR.type) > _HOUR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one attempt that started and is closed used."""

    job_id: int
    epoch: int
    vo: str
    owner: str
    ce: str
    queue: str
    processors: int
    started_at: datetime
    ended_at: datetime
    use: Usage  #: its `attempts`: 2 if it was lost and resumed, since both ends are counted
    peak_ram_mb: int | None  #: None: not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Records of some of the jobs."""

    records: Sequence[UsageRecord]
    last: int | None  #: the job to continue after; None: all were looked at


def read_page(
    conn: Connection, *, site: str, since: datetime, until: datetime, after: int, most: int = PAGE
) -> RecordPage:
    """Records of the attempts at a site that ended in a period, among the next `most` jobs after a job."""
    page = conn.execute(LAST_OF_PAGE, {"after": after, "most": most}).one()
    if not page.jobs:
        return RecordPage(records=(), last=None)
    bounds = {"after": after, "upto": page.last, "the_site": site, "since": since, "until": until}
    records = [_read_record(row) for row in conn.execute(ENDED_AT_SITE, bounds)]
    return RecordPage(records=records, last=page.last if page.jobs == most else None)


def count_accounted(conn: Connection, *, site: str, since: datetime, until: datetime) -> int:
    """The attempts at a site that ended in a period, as the accounting counted them."""
    bounds = {"the_site": site, "since": since, "until": until}
    return int(conn.execute(ACCOUNTED, bounds).scalar_one() or 0)


def _read_record(row: Row[*tuple[object, ...]]) -> UsageRecord:
    use = usage.measure_attempt(
        since=row.started_at,
        until=row.closed_at,
        started_at=row.started_at,
        processors=row.processors,
        request=row.request,
    )
    return UsageRecord(
        job_id=row.job_id,
        epoch=row.epoch,
        vo=row.vo,
        owner=row.owner,
        ce=row.ce,
        queue=row.queue,
        processors=row.processors or 1,
        started_at=row.started_at,
        ended_at=row.closed_at,
        use=use + Usage(attempts=1 if row.lost_at is None else 2),
        peak_ram_mb=row.peak_ram_mb,
    )
