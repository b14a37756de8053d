"""Search for pilots: filter, pages, and counts by status, result and location."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, false, func, or_, select

from requirements.errors import require_names
from requirements.states import PILOT_ACTIVE, PilotStatus
from taskqueue import ownership
from taskqueue.ownership import EVERY_ROW, Visible
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import ALL, Pilot
from taskqueue.schema.tables import attempts
from taskqueue.schema.tables import pilots as table

#: Stamps that a search by prefix reads.
_LOOKED_AT: Final = 1000

CHANGED_AT = select(table.c.updated_at).where(table.c.stamp == bindparam("stamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotFilter:
    """Conditions on pilots; None: no condition, an empty set: matches nothing."""

    visible: Visible = EVERY_ROW
    statuses: Collection[PilotStatus] | None = None
    submitted_by: str | None = None
    site: str | None = None
    ce: str | None = None
    queue: str | None = None
    has_reference: bool = False  #: only those with a reference of their CE
    since: datetime | None = None  #: changed then or later
    ended_since: datetime | None = None  #: active, or changed then or later

    def clauses(self) -> list[ColumnElement[bool]]:
        """SQL conditions on the table of pilots."""
        found = ownership.match_visible(self.visible, vo=table.c.vo, at=_may_be_at)
        found += ownership.match_values(
            {
                table.c.status: self.statuses,
                table.c.submitted_by: self.submitted_by,
                table.c.site: self.site,
                table.c.ce: self.ce,
                table.c.queue: self.queue,
            }
        )
        if self.has_reference:
            found.append(table.c.reference.is_not(None))
        if self.since is not None:
            found.append(table.c.updated_at >= self.since)
        if self.ended_since is not None:
            found.append(or_(_is_active, table.c.updated_at >= self.ended_since))
        return found


def list_pilots(conn: Connection, which: PilotFilter, *, limit: int, after: str = "") -> list[Pilot]:
    """A page of pilots, by stamp."""
    statement = ALL.where(table.c.stamp > after, *which.clauses())
    rows = conn.execute(statement.order_by(table.c.stamp).limit(limit)).mappings()
    return [pilots.from_row(dict(row)) for row in rows]


def list_by_prefix(conn: Connection, which: PilotFilter, prefix: str, *, limit: int) -> list[Pilot]:
    """Some pilots whose stamps begin so: of the next thousand stamps those that fulfil `which`."""
    following = (
        select(table.c.stamp).where(table.c.stamp > prefix).order_by(table.c.stamp).limit(_LOOKED_AT)
    ).subquery()
    has_prefix = func.substr(table.c.stamp, 1, len(prefix)) == prefix
    statement = ALL.where(table.c.stamp.in_(select(following.c.stamp)), has_prefix, *which.clauses())
    rows = conn.execute(statement.order_by(table.c.stamp).limit(limit)).mappings()
    return [pilots.from_row(dict(row)) for row in rows]


def list_latest(conn: Connection, which: PilotFilter, *, limit: int, after: str | None = None) -> list[Pilot]:
    """A page of pilots, those with the latest change first.

    `after` is the stamp of the last pilot on the previous page; if it was removed, the first page.
    """
    statement = ALL.where(*which.clauses())
    known = None if after is None else conn.execute(CHANGED_AT, {"stamp": after}).scalar_one_or_none()
    if known is not None:
        later = and_(table.c.updated_at == known, table.c.stamp > after)
        statement = statement.where(or_(table.c.updated_at < known, later))
    rows = conn.execute(statement.order_by(table.c.updated_at.desc(), table.c.stamp).limit(limit)).mappings()
    return [pilots.from_row(dict(row)) for row in rows]


def list_stale(conn: Connection, which: PilotFilter, *, limit: int) -> list[Pilot]:
    """Some pilots, those first whose last change is the longest ago."""
    statement = ALL.where(*which.clauses()).order_by(table.c.updated_at, table.c.stamp).limit(limit)
    return [pilots.from_row(dict(row)) for row in conn.execute(statement).mappings()]


def _may_be_at(sites: Collection[str]) -> ColumnElement[bool]:
    """At one of the sites (condition), or not bound yet and possibly there: `possible_queues` is JSON."""
    on_its_way = [
        table.c.possible_queues.contains(json.dumps(f"{site}/")[:-1], autoescape=True)
        for site in sorted(sites)
    ]
    return or_(table.c.site.in_(sorted(sites)), (table.c.site == "") & or_(false(), *on_its_way))


_is_active = table.c.status.in_(sorted(PILOT_ACTIVE))
_had_job = pilots.JOBS > 0
_was_good = or_(pilots.ENDED_JOBS > 0, and_(table.c.status == PilotStatus.DONE.value, table.c.jobs > 0))
_is_broken = table.c.status.in_(sorted((PilotStatus.FAILED, PilotStatus.ABORTED)))
#: Of pilots that have ended.
_ended_without_job = table.c.jobs == 0
_was_empty = and_(table.c.status == PilotStatus.DONE.value, _ended_without_job)


def _join_address(*columns: ColumnElement[str]) -> ColumnElement[str]:
    """Names joined to an address; empty until a broker has picked the queue."""
    text = columns[0]
    for column in columns[1:]:
        text = text + "/" + column
    return case((table.c.site == "", ""), else_=text)


#: Columns that counts may group by.
COLUMNS: Mapping[str, ColumnElement[str]] = {
    "status": table.c.status,
    "vo": table.c.vo,
    "site": table.c.site,
    "ce": _join_address(table.c.site, table.c.ce),
    "queue": _join_address(table.c.site, table.c.ce, table.c.queue),
    # A pilot whose end only its batch system reported gave no reason.
    "empty_reason": case(
        (_was_empty, func.coalesce(func.nullif(table.c.empty_reason, ""), "unknown")), else_=""
    ),
    "submitted_by": table.c.submitted_by,
    "node": table.c.node,  # empty until it reported it
}


def _count_where(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


_NUMBERS = (
    func.count().label("count"),
    func.sum(pilots.JOBS).label("jobs"),
    _count_where(_is_active).label("active"),
    _count_where(_had_job).label("with_jobs"),
    _count_where(_was_empty).label("empty"),
    _count_where(_is_broken).label("broken"),
    _count_where(_was_good).label("good"),
    _count_where(and_(_is_broken, table.c.ended_jobs == 0)).label("bad"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotCounts:
    """Numbers of pilots by result."""

    count: int
    jobs: int  #: total that they got
    active: int  #: not ended
    with_jobs: int  #: got at least one job
    empty: int  #: ended normally, without a job
    broken: int  #: Failed or Aborted
    good: int  #: at which a job ended, or that ended normally after jobs
    bad: int  #: Failed or Aborted, and no job ended there

    def __add__(self, other: "PilotCounts") -> "PilotCounts":
        return PilotCounts(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    @property
    def quality(self) -> float | None:
        """Fraction of good pilots among those of which it is known: good, empty and bad ones.

        It is about the pilots: one whose jobs all end with errors is good, `count_failed_jobs` counts these.
        """
        known = self.good + self.empty + self.bad
        return self.good / known if known else None


def count_pilots(
    conn: Connection, by: Sequence[str], which: PilotFilter
) -> Mapping[tuple[str, ...], PilotCounts]:
    """Count pilots for each combination of values of `by`, names of `COLUMNS`.

    InvalidRequest: a name is unknown, or `by` is empty.
    """
    require_names("by", by, COLUMNS)
    columns = [COLUMNS[name] for name in by]
    counted = select(*columns, *_NUMBERS).where(*which.clauses())
    rows = conn.execute(counted.group_by(*columns).order_by(*columns))
    names = [each.name for each in fields(PilotCounts)]
    return {
        tuple(row[: len(by)]): PilotCounts(**dict(zip(names, map(int, row[len(by) :]), strict=True)))
        for row in rows
    }


def count_failed_jobs(
    conn: Connection, by: Sequence[str], which: PilotFilter
) -> Mapping[tuple[str, ...], int]:
    """Count the jobs that ended with another exit code than 0 at pilots, in the same way; without zeros."""
    columns = [COLUMNS[name] for name in by]
    counted = select(*columns, func.count()).select_from(
        table.join(attempts, attempts.c.stamp == table.c.stamp)
    )
    rows = conn.execute(counted.where(attempts.c.exit_code != 0, *which.clauses()).group_by(*columns))
    return {tuple(values): number for *values, number in rows}
