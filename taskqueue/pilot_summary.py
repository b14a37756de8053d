"""How pilots fare, in numbers: by state, why they got nothing, and what their queues are worth."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from requirements.errors import InvalidRequest
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from taskqueue.pilot_search import Filter
from taskqueue.states import PILOT_STEPS, PilotStatus
from taskqueue.tables import pilots as table

_ACTIVE = sorted(status for status, steps in PILOT_STEPS.items() if steps)
_BROKEN = sorted((PilotStatus.FAILED.value, PilotStatus.ABORTED.value))

_lives = table.c.status.in_(_ACTIVE)
_had_job = table.c.jobs > 0
_broke = table.c.status.in_(_BROKEN)
_came_for_nothing = and_(table.c.status == PilotStatus.DONE.value, ~_had_job)


def _address(*columns: ColumnElement[str]) -> ColumnElement[str]:
    """Names joined to an address; empty as long as a broker has not picked the queue."""
    text = columns[0]
    for column in columns[1:]:
        text = text + "/" + column
    return case((table.c.site == "", ""), else_=text)


#: By what pilots are counted.
COLUMNS: Mapping[str, ColumnElement[str]] = {
    "status": table.c.status,
    "vo": table.c.vo,
    "site": table.c.site,
    "ce": _address(table.c.site, table.c.ce),
    "queue": _address(table.c.site, table.c.ce, table.c.queue),
    # What an earlier release stored has no word.
    "empty_reason": case(
        (_came_for_nothing, func.coalesce(func.nullif(table.c.empty_reason, ""), "unknown")), else_=""
    ),
    "submitted_by": table.c.submitted_by,
}


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


_NUMBERS = (
    func.count().label("count"),
    func.sum(table.c.jobs).label("jobs"),
    _number(_lives).label("active"),
    _number(_had_job).label("with_jobs"),
    _number(_came_for_nothing).label("empty"),
    _number(_broke).label("broken"),
    _number(and_(_broke, ~_had_job)).label("broken_without_job"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fared:
    """How some pilots fared."""

    count: int
    jobs: int  #: that they were given
    active: int  #: that have not ended
    with_jobs: int  #: that were given a job, or several
    empty: int  #: that ended as they should, without a job
    broken: int  #: Failed or Aborted
    broken_without_job: int

    def __add__(self, other: "Fared") -> "Fared":
        return Fared(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    @property
    def quality(self) -> float | None:
        """The share of those with a job among all of which it is known whether sending them was worth it."""
        known = self.with_jobs + self.empty + self.broken_without_job
        return self.with_jobs / known if known else None


def count(
    conn: Connection, by: Sequence[str], which: Filter, *, ended_since: datetime | None = None
) -> Mapping[tuple[str, ...], Fared]:
    """Count pilots for each combination of values of `by`.

    Args:
        conn: In any transaction.
        by: Names of `COLUMNS`.
        which: Which pilots.
        ended_since: Leave out those that ended before.

    Raises:
        InvalidRequest: A name is unknown, or there is none.
    """
    if problems := _problems(by):
        raise InvalidRequest(problems)
    columns = [COLUMNS[name] for name in by]
    clauses = which.clauses()
    if ended_since is not None:
        clauses.append(or_(_lives, table.c.updated_at >= ended_since))
    rows = conn.execute(select(*columns, *_NUMBERS).where(*clauses).group_by(*columns).order_by(*columns))
    return {tuple(row[: len(by)]): _fared(row[len(by) :]) for row in rows}


def _fared(numbers: Iterable[str | int]) -> Fared:
    return Fared(**{each.name: int(number) for each, number in zip(fields(Fared), numbers, strict=True)})


def _problems(by: Sequence[str]) -> list[Problem]:
    allowed = ", ".join(COLUMNS)
    if not by:
        return [Problem(path="by", message=f"names nothing; {allowed} are allowed")]
    return [
        Problem(
            path="by", message=f"{name!r:.80} is not among {allowed}", suggestion=did_you_mean(name, COLUMNS)
        )
        for name in by
        if name not in COLUMNS
    ]
