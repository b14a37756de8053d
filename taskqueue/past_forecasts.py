"""Forecasts of the starts of jobs, stored to measure how many hold: the latest of each VO.

An agent makes them of a sample of the waiting jobs, so that the record is that of all jobs, not of those
about which users ask.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from taskqueue.db import sql
from taskqueue.schema.tables import attempts, waiting_jobs
from taskqueue.schema.tables import start_forecasts as table

#: Forecasts of a VO whose jobs have started, or were given up, and of those whose jobs wait; a job that waits
#: may be among them more than once.
MOST: Final = 500

INSERT = sql.insert_or_skip(table)
_IS_OPEN = table.c.waited.is_(None)
_STARTED = (
    select(table.c.job_id, table.c.at, func.min(attempts.c.opened_at).label("opened_at"))
    .join(attempts, attempts.c.job_id == table.c.job_id)
    .where(_IS_OPEN, attempts.c.opened_at >= table.c.at)
    .group_by(table.c.job_id, table.c.at)
)
_IS_ROW = (table.c.job_id == bindparam("the_job")) & (table.c.at == bindparam("the_time"))
SETTLE = update(table).where(_IS_ROW, _IS_OPEN).values(waited=bindparam("the_wait"))
# The claim that takes a job out of the waiting ones opens its attempt, so one of the two is seen.
REMOVE_GONE = delete(table).where(
    _IS_OPEN,
    ~exists().where(waiting_jobs.c.job_id == table.c.job_id),
    ~exists().where(attempts.c.job_id == table.c.job_id, attempts.c.opened_at >= table.c.at),
)
_numbered = select(
    table.c.job_id,
    table.c.at,
    func.row_number()
    .over(partition_by=(table.c.vo, _IS_OPEN), order_by=(table.c.at.desc(), table.c.job_id))
    .label("number"),
).subquery()
REMOVE_OLD = delete(table).where(
    exists().where(
        _numbered.c.job_id == table.c.job_id,
        _numbered.c.at == table.c.at,
        _numbered.c.number > bindparam("most"),
    )
)
OPEN_OF_VO = select(table.c.job_id, table.c.at).where(_IS_OPEN, table.c.vo == bindparam("vo"))
GIVE_UP = update(table).where(_IS_ROW, _IS_OPEN).values(waited=bindparam("the_wait"), given_up=True)
OF_VO = select(table).where(table.c.vo == bindparam("vo")).order_by(table.c.at, table.c.job_id)
OPEN = select(table.c.vo, func.count().label("number")).where(_IS_OPEN).group_by(table.c.vo)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartInterval:
    """Seconds until a start."""

    least: float
    most: float | None  #: None: no end is known

    def misses(self, waited: float) -> tuple[bool, bool]:
        """Whether a start after so many seconds is before, and whether it is after the interval."""
        return waited < self.least, self.most is not None and waited > self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class PastForecast:
    """A forecast and what came of it."""

    estimate: float  #: seconds
    interval: StartInterval | None  #: None: none was given, for lack of past forecasts
    waited: float  #: seconds until the start, or so far
    has_started: bool

    @property
    def ratio(self) -> float:
        """By which the estimate was too short."""
        return self.waited / self.estimate

    @property
    def judged(self) -> tuple[bool, bool] | None:
        """Whether it missed at the two ends; None: not known yet."""
        if self.interval is None:
            return None
        early, late = self.interval.misses(self.waited)
        return (early and self.has_started, late) if self.has_started or late else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewForecast:
    """A forecast to be stored."""

    job_id: int
    vo: str
    estimate: float
    interval: StartInterval | None


def store(conn: Connection, made: Iterable[NewForecast], *, now: datetime) -> None:
    """Store forecasts that were made now."""
    rows = [
        {
            "job_id": each.job_id,
            "at": now,
            "vo": each.vo,
            "estimate": each.estimate,
            "least": each.interval.least if each.interval else None,
            "most": each.interval.most if each.interval else None,
        }
        for each in made
    ]
    if rows:
        conn.execute(INSERT, rows)


def settle(conn: Connection) -> int:
    """Store the starts of jobs; remove forecasts of jobs that no longer wait, and the oldest. How many."""
    started = [
        {"the_job": row.job_id, "the_time": row.at, "the_wait": (row.opened_at - row.at).total_seconds()}
        for row in conn.execute(_STARTED)
    ]
    if started:
        conn.execute(SETTLE, started)
    conn.execute(REMOVE_GONE)
    conn.execute(REMOVE_OLD, {"most": MOST})
    return len(started)


def give_up(conn: Connection, vo: str, random: Random, *, now: datetime) -> None:
    """Follow one of the waiting jobs of a VO no longer; that it waited so long stays in the record.

    Any of them is as likely: if it depended on how long they have waited, the record would be wrong about
    those that wait longer (independent censoring, as survival analysis calls it).
    """
    found = conn.execute(OPEN_OF_VO.order_by(table.c.job_id, table.c.at), {"vo": vo}).all()
    if found:
        row = random.choice(found)
        values = {"the_job": row.job_id, "the_time": row.at, "the_wait": (now - row.at).total_seconds()}
        conn.execute(GIVE_UP, values)


def count_open(conn: Connection) -> dict[str, int]:
    """Numbers of forecasts whose jobs wait, by VO."""
    return {row.vo: row.number for row in conn.execute(OPEN)}


def list_past(conn: Connection, vo: str, *, now: datetime) -> Sequence[PastForecast]:
    """The stored forecasts of a VO, the oldest first."""
    return [
        PastForecast(
            estimate=row.estimate,
            interval=None if row.least is None else StartInterval(least=row.least, most=row.most),
            waited=(now - row.at).total_seconds() if row.waited is None else row.waited,
            has_started=row.waited is not None and not row.given_up,
        )
        for row in conn.execute(OF_VO, {"vo": vo})
    ]
