"""Accounting pages: used resources as a plot, a table and CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.accounting import AccountingAnswer, AccountingQuery, AccountingRow
from pilotage.service.pages import charts
from pilotage.service.pages.charts import Plot, PlotSeries
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation
from pilotage.service.queries import accounting
from taskqueue.accounting.report import TimeBucket
from taskqueue.accounting.sums import truncate_to_hour
from taskqueue.db import database

_HOUR: Final = 3600.0
_LENGTHS: Final = {TimeBucket.HOUR: timedelta(hours=1), TimeBucket.DAY: timedelta(days=1)}
_APPROXIMATE: Final = {**_LENGTHS, TimeBucket.MONTH: timedelta(days=30), TimeBucket.YEAR: timedelta(days=365)}
#: Most steps of a plot with the default bucket, and with a chosen one.
_DEFAULT_STEPS, _MOST_STEPS = 125, 400
#: Shown for an empty value: a job that never ran has no site.
NOTHING: Final = "(none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A quantity that can be plotted."""

    name: str  #: in the address
    title: str
    unit: str
    of: Callable[[AccountingRow], float]
    adds_up: bool = True


EFFICIENCY: Final = "efficiency"
WAITED: Final = "waited"
QUANTITIES: Final[Sequence[Quantity]] = (
    Quantity(name="jobs", title="Jobs that ended", unit="jobs", of=lambda row: row.jobs),
    Quantity(name="wall", title="Wall time", unit="hours", of=lambda row: row.wall_seconds / _HOUR),
    Quantity(name="core", title="Core time", unit="core hours", of=lambda row: row.core_seconds / _HOUR),
    Quantity(name="cpu", title="CPU time", unit="hours", of=lambda row: row.cpu_seconds / _HOUR),
    Quantity(
        name="normalised",
        title="Normalised CPU time",
        unit="hours × power",
        of=lambda row: row.normalised_cpu_seconds / _HOUR,
    ),
    Quantity(
        name=EFFICIENCY,
        title="CPU efficiency",
        unit="%",
        of=lambda row: 100 * (row.cpu_efficiency or 0),
        adds_up=False,
    ),
    Quantity(
        name=WAITED,
        title="Time waited",
        unit="hours",
        of=lambda row: sum(row.waited.values()) / _HOUR,
    ),
)


def quantity(name: str) -> Quantity:
    """The quantity with this name; by default the first."""
    return next((each for each in QUANTITIES if each.name == name), QUANTITIES[0])


def bucket_for(since: datetime, until: datetime, wanted: TimeBucket | None = None) -> TimeBucket:
    """The length of a step: the wanted bucket, or the next one with few enough steps."""
    lengths = list(TimeBucket)
    most = _DEFAULT_STEPS if wanted is None else _MOST_STEPS
    for bucket in lengths if wanted is None else lengths[lengths.index(wanted) :]:
        if (until - since) / _APPROXIMATE[bucket] <= most:
            return bucket
    return TimeBucket.YEAR


def draw(answer: AccountingAnswer, wanted: Quantity) -> tuple[Plot, list[datetime]]:
    """The plot, and the times of its steps."""
    bucket = answer.bucket or TimeBucket.DAY
    steps = begins(answer.since, answer.until, bucket)
    place = {at: number for number, at in enumerate(steps)}
    values = _sort_by_cause(answer, place) if wanted.name == WAITED else _sort_by_name(answer, place, wanted)
    if wanted.adds_up:
        return charts.stacked(charts.largest(values), len(steps)), steps
    return charts.lines(_most_used(answer, values), len(steps), least_top=100), steps


def begins(since: datetime, until: datetime, bucket: TimeBucket) -> list[datetime]:
    """Start times of the steps from `since` to `until`."""
    at = _floor(since, bucket)
    found = []
    while at < until:
        found.append(at)
        at = _next(at, bucket)
    return found


def name_of(row: AccountingRow, by: Sequence[str]) -> str:
    """Label of a row: its values."""
    extra = row.model_extra or {}
    return " · ".join(str(extra[name]) or NOTHING for name in by)


def _sort_by_name(
    answer: AccountingAnswer, place: Mapping[datetime, int], wanted: Quantity
) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in answer.rows:
        series = values.setdefault(name_of(row, answer.by), [0.0] * len(place))
        series[_step(row, place)] += wanted.of(row)
    return values


def _sort_by_cause(answer: AccountingAnswer, place: Mapping[datetime, int]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in answer.rows:
        for cause, seconds in row.waited.items():
            values.setdefault(cause, [0.0] * len(place))[_step(row, place)] += seconds / _HOUR
    return values


def _most_used(answer: AccountingAnswer, values: Mapping[str, Sequence[float]]) -> list[PlotSeries]:
    """The series with the most core time, since efficiencies do not add up; None where CPU is unknown."""
    core: dict[str, float] = {}
    for row in answer.rows:
        if row.cpu_efficiency is not None:
            name = name_of(row, answer.by)
            core[name] = core.get(name, 0.0) + row.core_seconds
    by_size = sorted(core, key=lambda name: (-core[name], name))[: charts.MOST_SERIES]
    return [
        PlotSeries(
            name=name, number=number, values=[value or None for value in values[name]], total=core[name]
        )
        for number, name in enumerate(by_size, 1)
    ]


def _step(row: AccountingRow, place: Mapping[datetime, int]) -> int:
    at: datetime = (row.model_extra or {})["at"]
    return place[at]


def _floor(at: datetime, bucket: TimeBucket) -> datetime:
    changes: dict[TimeBucket, dict[str, Any]] = {
        TimeBucket.HOUR: {},
        TimeBucket.DAY: {"hour": 0},
        TimeBucket.MONTH: {"hour": 0, "day": 1},
        TimeBucket.YEAR: {"hour": 0, "day": 1, "month": 1},
    }
    return truncate_to_hour(at).replace(**changes[bucket])


def _next(at: datetime, bucket: TimeBucket) -> datetime:
    if bucket in _LENGTHS:
        return at + _LENGTHS[bucket]
    if bucket is TimeBucket.YEAR:
        return at.replace(year=at.year + 1)
    return at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1)


router = APIRouter(route_class=PageRoute)

#: Periods offered as links.
RANGES: Final = (("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days"), ("365d", "a year"))
#: Next grouping when a value is selected.
_DEEPER: Final = {"vo": "site", "site": "queue", "ce": "queue", "owner_group": "owner"}
_FILTERS: Final = ("vo", "site", "ce", "queue", "owner", "owner_group", "status")


class AccountingShown(BaseModel):
    """Query of the page."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    by: str = Field(default="vo", max_length=40, pattern="^[a-z_]+$")  # one column of the page
    quantity: str = Field(default="jobs", max_length=40)
    since: str = Field(default="7d", alias="from", max_length=40)
    until: str | None = Field(default=None, alias="to", max_length=40)
    bucket: TimeBucket | None = None
    vo: str | None = Field(default=None, max_length=1000)
    site: str | None = Field(default=None, max_length=1000)
    ce: str | None = Field(default=None, max_length=1000)
    queue: str | None = Field(default=None, max_length=1000)
    owner: str | None = Field(default=None, max_length=1000)
    owner_group: str | None = Field(default=None, max_length=1000)
    status: str | None = Field(default=None, max_length=1000)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: Any) -> Any:
        """Drop fields of the form that were left empty."""
        return (
            {name: value for name, value in given.items() if value != ""}
            if isinstance(given, dict)
            else given
        )

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are set."""
        return {name: value for name in _FILTERS if (value := getattr(self, name)) is not None}

    def to_query(self, *, bucket: TimeBucket | None = None) -> AccountingQuery:
        """The same as a query of the API."""
        return AccountingQuery.model_validate(
            {"by": [self.by], "from": self.since, "to": self.until, "bucket": bucket, **self.filters}
        )


@router.get("/accounting")
@add_to_navigation("Accounting")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def show(page: PageOf, shown: Annotated[AccountingShown, Query()]) -> HTMLResponse:
    """Show used resources: users their own, VO admins their VO's, site admins those of their sites."""
    whole = _answer(page, shown.to_query())
    bucket = bucket_for(whole.since, whole.until, shown.bucket)
    wanted = quantity(shown.quantity)
    drawn, steps = draw(_answer(page, shown.to_query(bucket=bucket)), wanted)
    return page.render(
        "accounting/accounting.html",
        shown=shown,
        answer=whole,
        rows=sorted(whole.rows, key=lambda row: -wanted.of(row)),
        name_of=name_of,
        wanted=wanted,
        quantities=QUANTITIES,
        ranges=RANGES,
        dimensions=accounting.dimensions(page.caller),
        buckets=list(TimeBucket),
        bucket=bucket,
        plot=drawn,
        steps=steps,
        fields=_fields(page.caller),
        deeper=_deeper(page.caller, shown.by),
    )


@router.get("/accounting.csv", response_class=Response)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def download(page: PageOf, shown: Annotated[AccountingShown, Query()]) -> Response:
    """Download the rows of the page as CSV."""
    question = shown.to_query()
    text = accounting.text(
        _answer(page, question if shown.bucket is None else shown.to_query(bucket=shown.bucket))
    )
    attachment = {"Content-Disposition": 'attachment; filename="accounting.csv"', "Cache-Control": "no-store"}
    return Response(text, media_type=accounting.MEDIA_TYPE, headers=attachment)


def _answer(page: PageContext, query: AccountingQuery) -> AccountingAnswer:
    question = accounting.understand(page.caller, query, now=page.parts.clock())
    with database.reading(page.parts.engine) as conn:
        return accounting.answer(conn, question)


def _fields(caller: Caller) -> Sequence[str]:
    """Filters in the form: those that the caller's role does not fix."""
    settled = {Role.USER: {"vo", "owner", "owner_group"}, Role.VO_ADMIN: {"vo"}}.get(caller.role, set())
    return [
        name
        for name in ("vo", "site", "owner", "status")
        if name in set(accounting.dimensions(caller)) - settled
    ]


def _deeper(caller: Caller, by: str) -> str | None:
    """Grouping for the rows of one value."""
    wanted = _DEEPER.get(by)
    return wanted if wanted in accounting.dimensions(caller) else None
