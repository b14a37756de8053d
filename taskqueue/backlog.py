"""How many jobs wait or are about to: what the limits on submission count."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Connection, Engine, Select, bindparam, func, select

from cs_config.options import Limits
from taskqueue.errors import QuotaExceeded
from taskqueue.states import PREPARING, JobStatus
from taskqueue.tables import jobs

_WAITING = sorted(PREPARING | {JobStatus.WAITING})


def _counted(*conditions: ColumnElement[bool]) -> Select[int]:
    # Counting goes no further than it has to: a VO may have millions.
    some = select(jobs.c.job_id).where(jobs.c.status.in_(_WAITING), *conditions).limit(bindparam("most"))
    return select(func.count()).select_from(some.subquery())


_IS_VO = jobs.c.vo == bindparam("vo")
OF_VO = _counted(_IS_VO)
OF_OWNER = _counted(_IS_VO, jobs.c.owner == bindparam("owner"))
#: The first and the last job that is stored; both are found without reading what lies between.
FIRST = select(func.coalesce(func.min(jobs.c.job_id), 1))
LAST = select(func.coalesce(func.max(jobs.c.job_id), 0))

#: A VO, and an owner in it or all together.
_Whose = tuple[str, str | None]

#: For so long a count is gone on from: jobs that come back to wait are not seen by it.
_GOOD_FOR = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class _Count:
    """How many jobs waited at some time, and what had been stored by then."""

    waiting: int
    last: int  #: job
    at: datetime


_COUNTED: WeakKeyDictionary[Engine, dict[_Whose, _Count]] = WeakKeyDictionary()


def check_room(
    conn: Connection,
    new: Mapping[tuple[str, str], int],
    limits: Callable[[str], Limits],
    *,
    now: datetime,
) -> None:
    """Refuse jobs beyond the limits of their owners and VOs.

    Args:
        conn: In the transaction that stores the jobs.
        new: How many there are, by VO and owner.
        limits: Of a VO.
        now: The time.

    Raises:
        QuotaExceeded: There are too many.
    """
    of_vo: Counter[str] = Counter()
    for (vo, owner), jobs_of_owner in new.items():
        of_vo[vo] += jobs_of_owner
        most = limits(vo).waiting_jobs_per_owner
        if not _has_room(conn, (vo, owner), new=jobs_of_owner, most=most, now=now):
            raise _too_many(f"{owner} has too many waiting jobs in {vo}", jobs_of_owner, most)
    for vo, jobs_of_vo in of_vo.items():
        most = limits(vo).waiting_jobs_per_vo
        if not _has_room(conn, (vo, None), new=jobs_of_vo, most=most, now=now):
            raise _too_many(f"{vo} has too many waiting jobs", jobs_of_vo, most)


def _too_many(what: str, new: int, most: int) -> QuotaExceeded:
    return QuotaExceeded(f"{what} for {new} more, allowed are {most}")


def _has_room(conn: Connection, whose: _Whose, *, new: int, most: int, now: datetime) -> bool:
    """Whether with `new` jobs more a VO, or one owner in it, stays within `most` jobs without a pilot.

    Counting may take as long as there are jobs, so a count is gone on from: no more can wait than did then
    and have been stored since. Only where that is too many it is counted anew.
    """
    if new > most:
        return False
    last = conn.execute(LAST).scalar_one()
    if last - conn.execute(FIRST).scalar_one() + 1 + new <= most:
        return True
    counted = _COUNTED.setdefault(conn.engine, {})
    known = counted.get(whose)
    if (
        known is not None
        and abs(now - known.at) < _GOOD_FOR
        and known.waiting + max(0, last - known.last) + new <= most
    ):
        return True
    waiting = _count(conn, whose, most + 1)
    counted[whose] = _Count(waiting, last, now)
    return waiting + new <= most


def _count(conn: Connection, whose: _Whose, most: int) -> int:
    vo, owner = whose
    if owner is None:
        return conn.execute(OF_VO, {"vo": vo, "most": most}).scalar_one()
    return conn.execute(OF_OWNER, {"vo": vo, "owner": owner, "most": most}).scalar_one()
