"""Accounting pages: used resources as a chart, a table and CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import ConfigDict, Field, model_validator

from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.pages import templating
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation, shows_filter
from pilotage.service.pages.templating import Chart, ChartLine
from pilotage.service.queries import accounting, overview
from pilotage.service.queries.accounting import AccountingAnswer, AccountingQuery, AccountingRow, Columns
from requirements.states import JobStatus
from taskqueue.accounting import depths
from taskqueue.accounting.report import DIMENSIONS, TimeBucket
from taskqueue.accounting.sums import truncate_to_hour

router = APIRouter(route_class=PageRoute)

_HOUR: Final = 3600.0
#: The longest of each, and the fields of a time that are cleared at its start.
_STEPS: Final[Mapping[TimeBucket, tuple[timedelta, dict[str, Any]]]] = {
    TimeBucket.HOUR: (timedelta(hours=1), {}),
    TimeBucket.DAY: (timedelta(days=1), {"hour": 0}),
    TimeBucket.MONTH: (timedelta(days=31), {"hour": 0, "day": 1}),
    TimeBucket.YEAR: (timedelta(days=366), {"hour": 0, "day": 1, "month": 1}),
}
#: Most steps of a chart with the default bucket, and with a chosen one.
_DEFAULT_STEPS, _MOST_STEPS = 125, 400
#: Colours of the statuses that jobs end with, as on all pages.
_TONES: Final[Mapping[str, str]] = {
    JobStatus.DONE: "done",
    JobStatus.FAILED: "failed",
    JobStatus.KILLED: "killed",
    JobStatus.RESCHEDULED: "stalled",
}
#: Titles of the columns that differ from their names.
_TITLES: Final = {"vo": "VO", "ce": "CE", "owner_group": "Owner group"}
#: Shown for an empty value: a job that never ran has no site.
NOTHING: Final = "(none)"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that can be plotted."""

    name: str  #: in the address
    title: str
    unit: str
    of: Callable[[AccountingRow], float]


EFFICIENCY: Final = "efficiency"
WAITED: Final = "waited"
QUANTITIES: Final = (
    Quantity("jobs", "Jobs that ended", "jobs", lambda row: row.jobs),
    Quantity("wall", "Wall time", "hours", lambda row: row.wall_seconds / _HOUR),
    Quantity("core", "Core time", "core hours", lambda row: row.core_seconds / _HOUR),
    Quantity("cpu", "CPU time", "hours", lambda row: row.cpu_seconds / _HOUR),
    Quantity(
        "normalised",
        "Normalised CPU time",
        "hours × power",
        lambda row: row.normalised_cpu_seconds / _HOUR,
    ),
    Quantity(EFFICIENCY, "CPU efficiency", "%", lambda row: 100 * (row.cpu_efficiency or 0)),
    Quantity(WAITED, "Time waited", "hours", lambda row: sum(row.waited.values()) / _HOUR),
)


def bucket_for(since: datetime, until: datetime, wanted: TimeBucket | None = None) -> TimeBucket:
    """The length of a step: the wanted bucket, or the next one with few enough steps."""
    most = _DEFAULT_STEPS if wanted is None else _MOST_STEPS
    shortest = _STEPS[wanted or TimeBucket.HOUR][0]
    for bucket, (length, _) in _STEPS.items():
        if length >= shortest and (until - since) / length <= most:
            return bucket
    return TimeBucket.YEAR


def draw(answer: AccountingAnswer, wanted: Quantity) -> Chart:
    """The quantity over time, stacked; efficiencies, which do not add up, as lines."""
    bucket = answer.bucket or TimeBucket.DAY
    steps = list_steps(answer.since, answer.until, bucket)
    values = _add_up(answer, {at: number for number, at in enumerate(steps)}, wanted)
    is_sum = wanted.name != EFFICIENCY
    cause = " by cause and" if wanted.name == WAITED else " by"
    lines = templating.list_largest(values) if is_sum else _list_most_used(answer, values)
    if list(answer.by) == ["status"]:
        lines = [replace(line, tone=_TONES.get(line.label, line.tone)) for line in lines]
    return Chart(
        title=wanted.title,
        note=f"{wanted.unit}{cause} {bucket}, UTC",
        times=steps,
        lines=lines,
        kind="bars" if is_sum else "line",
    )


def list_steps(since: datetime, until: datetime, bucket: TimeBucket) -> list[datetime]:
    """Start times of the steps from `since` to `until`."""
    length, cleared = _STEPS[bucket]
    found = []
    at = truncate_to_hour(since).replace(**cleared)
    while at < until:
        found.append(at)
        at = (at + length).replace(**cleared)
    return found


def name_of(row: AccountingRow, by: Sequence[str]) -> str:
    """Label of a row: its values."""
    extra = row.model_extra or {}
    return " · ".join(str(extra[name]) or NOTHING for name in by)


def title_of(name: str) -> str:
    """Title of a column."""
    return _TITLES.get(name, name.capitalize())


def _add_up(
    answer: AccountingAnswer, place: Mapping[datetime, int], wanted: Quantity
) -> dict[str, list[float]]:
    """The values at each step, by name; of time waited by cause."""
    values: dict[str, list[float]] = {}
    for row in answer.rows:
        parts = {name_of(row, answer.by): wanted.of(row)}
        if wanted.name == WAITED:
            parts = {cause: seconds / _HOUR for cause, seconds in row.waited.items()}
        step = place[(row.model_extra or {})["at"]]
        for name, value in parts.items():
            values.setdefault(name, [0.0] * len(place))[step] += value
    return values


def _list_most_used(answer: AccountingAnswer, values: Mapping[str, Sequence[float]]) -> list[ChartLine]:
    """The lines with the most core time; None where CPU time is unknown."""
    core: dict[str, float] = {}
    for row in answer.rows:
        if row.cpu_efficiency is not None:
            name = name_of(row, answer.by)
            core[name] = core.get(name, 0.0) + row.core_seconds
    by_size = sorted(core, key=lambda name: (-core[name], name))[: templating.MOST_LINES]
    return [
        ChartLine(label=name, tone=tone, values=[value or None for value in values[name]])
        for tone, name in enumerate(by_size, 1)
    ]


#: Periods offered as links.
RANGES: Final = (("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days"), ("365d", "a year"))
#: Next grouping when a value is selected.
_DEEPER: Final = {"vo": "site", "site": "queue", "ce": "queue", "owner_group": "owner"}
#: Filters in the form, and those that a role fixes.
_FIELDS: Final = ("vo", "site", "owner", "status")
_SETTLED: Final = {Role.USER: ("vo", "owner", "owner_group"), Role.VO_ADMIN: ("vo",)}


class AccountingShown(AccountingQuery):
    """Query of the page: of the API, by one column, with the quantity of the chart."""

    model_config = ConfigDict(extra="ignore")

    by: Columns = Field(default=["vo"], min_length=1, max_length=1)
    quantity: str = Field(default="jobs", max_length=40)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: Any) -> Any:
        """Drop fields of the form that were left empty."""
        is_form = isinstance(given, dict)
        return {name: value for name, value in given.items() if value not in ("", [""])} if is_form else given

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are set."""
        return {name: ",".join(value) for name in DIMENSIONS if (value := getattr(self, name)) is not None}


def draw_ended_jobs(page: PageContext, hours: int) -> list[Chart]:
    """The jobs that ended in the last hours, by VO and by status, of those that the caller sees."""
    charts = []
    for column, title in (("vo", "VO"), ("status", "status")):
        shown = AccountingShown.model_validate({"by": [column], "from": f"{hours}h"})
        whole = _answer(page, shown, TimeBucket.HOUR if hours <= _DEFAULT_STEPS else TimeBucket.DAY)
        charts.append(replace(draw(whole, QUANTITIES[0]), title=f"Jobs that ended, by {title}"))
    return charts


def draw_jobs_at_site(page: PageContext, site: str, hours: int) -> list[Chart]:
    """The jobs that ended at a site by status, and how many ran there, in the last hours."""
    shown = AccountingShown.model_validate({"by": ["status"], "site": [site], "from": f"{hours}h"})
    ended = _answer(page, shown, TimeBucket.HOUR)
    by_vo = _answer(page, shown.model_copy(update={"by": ["vo"]}), TimeBucket.HOUR)
    running = Quantity("running", "Jobs that ran", "average", lambda row: row.wall_seconds / _HOUR)
    charts = (draw(ended, QUANTITIES[0]), draw(by_vo, running))
    notes = ("by status", "of those that have ended, by VO")
    titles = (f"{each.title} there, {hours} h" for each in charts)
    return [
        replace(chart, title=title, note=f"{chart.note}; {note}")
        for chart, title, note in zip(charts, titles, notes, strict=True)
    ]


def draw_depths(page: PageContext, hours: int, site: str | None = None) -> Chart:
    """The waiting jobs that the largest sites could run over time, or one site and its largest queues."""
    found = overview.read_depths(page.parts, page.caller, site=site, hours=hours, now=page.parts.clock())
    period = f"{hours // 24} d" if hours > 24 else f"{hours} h"
    total = {name: sum(jobs or 0 for jobs in sampled) for name, sampled in found.jobs.items()}
    by_size = sorted(total, key=lambda name: (name != depths.ALL, -total[name], name))
    lines = [
        ChartLine(label=name or "the site", tone=tone, values=found.jobs[name])
        for tone, name in enumerate(by_size[: templating.MOST_LINES], 1)
    ]
    return Chart(
        title=f"Waiting jobs that {f'its queues could run, {period}' if site else 'sites could run'}",
        note="number of jobs, each counted wherever it could run; times are UTC",
        times=found.begins,
        lines=lines,
    )


@router.get("/accounting")
@add_to_navigation("Accounting")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
@shows_filter
def show(page: PageOf, shown: Annotated[AccountingShown, Query()]) -> HTMLResponse:
    """Show used resources: users their own, VO admins their VO's, site admins those of their sites."""
    whole = _answer(page, shown, None)
    bucket = bucket_for(whole.since, whole.until, shown.bucket)
    wanted = next((each for each in QUANTITIES if each.name == shown.quantity), QUANTITIES[0])
    dimensions = accounting.dimensions(page.caller)
    settled, deeper = _SETTLED.get(page.caller.role, ()), _DEEPER.get(shown.by[0])
    return page.render(
        "accounting/accounting.html",
        shown=shown,
        answer=whole,
        rows=sorted(whole.rows, key=lambda row: -wanted.of(row)),
        name_of=name_of,
        wanted=wanted,
        quantities=[(each.name, each.title) for each in QUANTITIES],
        ranges=RANGES,
        columns=[(name, title_of(name)) for name in dimensions],
        title_of=title_of,
        buckets=list(TimeBucket),
        chart=draw(_answer(page, shown, bucket), wanted),
        fields=[name for name in _FIELDS if name in dimensions and name not in settled],
        deeper=deeper if deeper in dimensions else None,
    )


@router.get("/accounting.csv", response_class=Response)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def download(page: PageOf, shown: Annotated[AccountingShown, Query()]) -> Response:
    """Download the rows of the page as CSV."""
    text = accounting.text(_answer(page, shown, shown.bucket))
    attachment = {"Content-Disposition": 'attachment; filename="accounting.csv"', "Cache-Control": "no-store"}
    return Response(text, media_type=accounting.MEDIA_TYPE, headers=attachment)


def _answer(page: PageContext, shown: AccountingShown, bucket: TimeBucket | None) -> AccountingAnswer:
    return accounting.read(page.parts, page.caller, shown.model_copy(update={"bucket": bucket}))
