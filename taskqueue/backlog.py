"""How many jobs wait or are about to: what the limits on submission count."""

from collections import Counter
from collections.abc import Callable, Mapping

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select

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
#: No more jobs than this are stored; both ends are found without reading what lies between.
AT_MOST = select(func.coalesce(func.max(jobs.c.job_id) - func.min(jobs.c.job_id) + 1, 0))


def check_room(conn: Connection, new: Mapping[tuple[str, str], int], limits: Callable[[str], Limits]) -> None:
    """Refuse jobs beyond the limits of their owners and VOs.

    Args:
        conn: In the transaction that stores the jobs.
        new: How many there are, by VO and owner.
        limits: Of a VO.

    Raises:
        QuotaExceeded: There are too many.
    """
    of_vo: Counter[str] = Counter()
    for (vo, owner), jobs_of_owner in new.items():
        of_vo[vo] += jobs_of_owner
        most = limits(vo).waiting_jobs_per_owner
        if not _has_room(conn, vo=vo, owner=owner, new=jobs_of_owner, most=most):
            raise _too_many(f"{owner} has too many waiting jobs in {vo}", jobs_of_owner, most)
    for vo, jobs_of_vo in of_vo.items():
        most = limits(vo).waiting_jobs_per_vo
        if not _has_room(conn, vo=vo, new=jobs_of_vo, most=most):
            raise _too_many(f"{vo} has too many waiting jobs", jobs_of_vo, most)


def _too_many(what: str, new: int, most: int) -> QuotaExceeded:
    return QuotaExceeded(f"{what} for {new} more, allowed are {most}")


def _has_room(conn: Connection, *, vo: str, owner: str | None = None, new: int, most: int) -> bool:
    """Whether with `new` jobs more a VO, or one owner in it, stays within `most` jobs without a pilot."""
    if new > most:
        return False
    if conn.execute(AT_MOST).scalar_one() + new <= most:
        return True
    if owner is None:
        waiting = conn.execute(OF_VO, {"vo": vo, "most": most + 1}).scalar_one()
    else:
        waiting = conn.execute(OF_OWNER, {"vo": vo, "owner": owner, "most": most + 1}).scalar_one()
    return waiting + new <= most
