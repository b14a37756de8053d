"""Jobs by status over time, and how many came into each: for plots, without a look at any job."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, select

from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import job_flows, job_stocks

_MINUTE = timedelta(minutes=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

_SINCE = bindparam("since", type_=job_flows.c.minute.type)
FLOWS = (
    select(
        job_flows.c.minute,
        job_flows.c.status,
        func.sum(job_flows.c.came).label("came"),
        func.sum(job_flows.c.went).label("went"),
    )
    .where(job_flows.c.minute >= _SINCE)
    .group_by(job_flows.c.minute, job_flows.c.status)
)
_STOCKS = select(job_stocks.c.vo, job_stocks.c.status, job_stocks.c.jobs)
_is_final = job_stocks.c.status.in_(sorted(FINAL))
STOCKS = _STOCKS.where(~_is_final, job_stocks.c.jobs != 0)
ENDED = _STOCKS.where(_is_final)
_VOS: BindParameter[str] = bindparam("vos", expanding=True)
FLOWS_OF = FLOWS.where(job_flows.c.vo.in_(_VOS))
STOCKS_OF = STOCKS.where(job_stocks.c.vo.in_(_VOS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What is plotted: equal steps of time, the oldest first."""

    step: timedelta
    begins: Sequence[datetime]  #: of each step
    jobs: Mapping[JobStatus, Sequence[int]]  #: at the end of each step, of statuses that are not final
    came: Mapping[JobStatus, Sequence[int]]  #: into the status, in each step; into Matched: the matches


def stocks(conn: Connection, vos: Collection[str] | None = None) -> Mapping[str, Mapping[JobStatus, int]]:
    """By VO and status how many jobs there are that have not ended; as of some seconds ago.

    Args:
        conn: Any connection.
        vos: Of these only; None: of all.
    """
    return _by_vo(conn.execute(STOCKS if vos is None else STOCKS_OF, _of(vos)))


def ended(conn: Connection) -> Mapping[str, Mapping[JobStatus, int]]:
    """By VO and final status how many jobs ever came to it, removed ones too; as of some seconds ago."""
    return _by_vo(conn.execute(ENDED))


def series(
    conn: Connection,
    *,
    vos: Collection[str] | None = None,
    since: datetime,
    until: datetime,
    step: timedelta = _MINUTE,
) -> Series:
    """How the jobs of some VOs stood and moved.

    Args:
        conn: Any connection.
        vos: Of these together; None: of all.
        since: In the first step.
        until: In the last step; the time, as later ones are not known.
        step: A whole number of minutes; steps begin at multiples of it in UTC.
    """
    begins = _steps(since, until, step)
    came, gained = _moved(conn, vos, begins[0], step)
    present: Counter[JobStatus] = Counter()
    for of_vo in stocks(conn, vos).values():
        present.update(of_vo)
    living = [status for status in JobStatus if status not in FINAL and status in present.keys() | gained]
    return Series(
        step=step,
        begins=begins,
        jobs={status: _levels(present[status], gained[status], len(begins)) for status in living},
        came={status: [jobs[place] for place in range(len(begins))] for status, jobs in came.items()},
    )


def _by_vo(rows: Iterable[Row[Any]]) -> Mapping[str, Mapping[JobStatus, int]]:
    found: defaultdict[str, dict[JobStatus, int]] = defaultdict(dict)
    for row in rows:
        found[row.vo][JobStatus(row.status)] = row.jobs
    return found


def _steps(since: datetime, until: datetime, step: timedelta) -> Sequence[datetime]:
    first = (since - _BEGINNING) // step
    last = max((until - _BEGINNING) // step, first)
    return [_BEGINNING + number * step for number in range(first, last + 1)]


def _moved(
    conn: Connection, vos: Collection[str] | None, since: datetime, step: timedelta
) -> tuple[Mapping[JobStatus, Counter[int]], Mapping[JobStatus, Counter[int]]]:
    """By status and number of the step how many jobs came, and how many more came than went."""
    came: defaultdict[JobStatus, Counter[int]] = defaultdict(Counter)
    gained: defaultdict[JobStatus, Counter[int]] = defaultdict(Counter)
    values = {"since": since, **_of(vos)}
    for row in conn.execute(FLOWS if vos is None else FLOWS_OF, values):
        status, place = JobStatus(row.status), (row.minute - since) // step
        came[status][place] += int(row.came)
        gained[status][place] += int(row.came - row.went)
    return came, gained


def _levels(present: int, gained: Mapping[int, int], steps: int) -> Sequence[int]:
    """How many there were at the end of each step, reckoned backwards from how many there are."""
    level = present - sum(jobs for place, jobs in gained.items() if place >= steps)
    levels = []
    for place in reversed(range(steps)):
        levels.append(level)
        level -= gained.get(place, 0)
    return levels[::-1]


def _of(vos: Collection[str] | None) -> dict[str, list[str]]:
    return {} if vos is None else {"vos": sorted(vos)}
