"""By what sums are kept: the hour, whose job it was, where it ran, and what it came to."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Row, Select, and_, select

from taskqueue.accounting.log_reader import is_within
from taskqueue.tables import attempts, job_log, jobs


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """What sums are kept by."""

    hour: datetime
    vo: str
    site: str  #: of the attempt, as its CE and queue; empty: the job had none
    ce: str
    queue: str
    owner: str
    owner_group: str
    status: str  #: that the job came into: its end, or Rescheduled

    @classmethod
    def of(cls, row: Row[*tuple[Any, ...]], hour: datetime) -> Self:
        """By what something is kept that `told` tells, of that hour."""
        return cls(
            hour=hour,
            vo=row.vo,
            site=row.site or "",
            ce=row.ce or "",
            queue=row.queue or "",
            owner=row.owner,
            owner_group=row.owner_group,
            status=row.to_status,
        )


NAMES: Final = tuple(each.name for each in fields(Key))

_OF_LOG = (job_log.c.at, job_log.c.to_status)
_OF_JOB = (jobs.c.vo, jobs.c.owner, jobs.c.owner_group)
_OF_ATTEMPT = (attempts.c.site, attempts.c.ce, attempts.c.queue)


def told(*more: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """The rows of a span of the log: what keys are made of, and more of the row, its job and its attempt."""
    return (
        select(*_OF_LOG, *_OF_JOB, *_OF_ATTEMPT, *more)
        .join(jobs, jobs.c.job_id == job_log.c.job_id)
        .outerjoin(attempts, and_(attempts.c.job_id == job_log.c.job_id, attempts.c.epoch == job_log.c.epoch))
        .where(is_within)
    )


def hour_of(at: datetime) -> datetime:
    """The beginning of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)
