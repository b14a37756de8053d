"""Overview page: numbers and charts of jobs, and problems; and the state of services and agents."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import metadata
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from agents import leader
from pilotage import extensions
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.pages import accounting
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation
from pilotage.service.pages.templating import Chart, ChartLine
from pilotage.service.problems import checks, readiness
from pilotage.service.problems.finding import Finding
from pilotage.service.queries import overview as overviews
from requirements.states import JobStatus
from taskqueue.accounting.time_series import StatusSeries
from taskqueue.db import agent_leases, database

router = APIRouter(route_class=PageRoute)

#: Periods in hours, with the minutes of a step.
SPANS = {1: 1, 6: 2, 24: 10, 168: 60}
#: Colours of statuses in the charts, the lowest area first.
_LIVING = {
    JobStatus.RUNNING: "running",
    JobStatus.COMPLETING: "running",
    JobStatus.MATCHED: "matched",
    JobStatus.STALLED: "stalled",
    JobStatus.RESCHEDULED: "stalled",
    JobStatus.STAGING: "received",
    JobStatus.WAITING: "waiting",
    JobStatus.CHECKING: "received",
    JobStatus.RECEIVED: "received",
}
_MOVES = {
    JobStatus.MATCHED: "matched",
    JobStatus.DONE: "done",
    JobStatus.FAILED: "failed",
    JobStatus.KILLED: "killed",
}
_UNIT = "number of jobs; times are UTC"
#: Problems of one subject that are listed.
_LISTED = 8


class OverviewQuery(BaseModel):
    """Query of the page."""

    hours: int = Field(default=1, ge=1, le=168)
    vo: str = Field(default="", max_length=255, description="VO of the charts; empty: all visible.")
    part: Literal["", "numbers", "course"] = ""

    @property
    def span(self) -> int:
        """The shortest of `SPANS` that covers `hours`."""
        return next(hours for hours in SPANS if hours >= self.hours)


@router.get("/")
@add_to_navigation("Overview")
@allow(*Role)
def overview(page: PageOf, query: Annotated[OverviewQuery, Query()]) -> HTMLResponse:
    """Show numbers, charts and problems; the parts of the page refresh themselves."""
    part = query.part if page.is_fragment else ""
    numbers = {} if part == "course" else _numbers(page)
    course = {} if part == "numbers" else _course(page, query.span, query.vo)
    return page.render(
        f"overview/{part or 'overview'}.html",
        hours=query.span,
        spans=SPANS,
        vo=query.vo,
        **numbers,
        **course,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """An agent with its latest cycle."""

    name: str
    last_at: datetime | None
    is_overdue: bool
    is_configured: bool  #: optional agents run only where they are
    broken: Sequence[str]  #: VOs whose work failed


@router.get("/services")
@add_to_navigation("Services")
@allow()
def show_services(page: PageOf) -> HTMLResponse:
    """Show whether the service, the database and the agents work."""
    now = page.parts.clock()
    with database.reading(page.parts.engine) as conn:
        latest, broken = agent_leases.list_last_cycles(conn), agent_leases.list_broken(conn)
        schema = database.schema_state(page.parts.engine)
    intervals = extensions.list_intervals(leader.INTERVALS, with_optional=True)
    expected = extensions.list_intervals(leader.INTERVALS, with_optional=False)
    overdue = leader.list_overdue(latest, intervals, now=now)
    agents = [
        AgentState(
            name=name,
            last_at=latest.get(name),
            is_overdue=name in overdue and name in expected,
            is_configured=name in expected or name not in overdue,
            broken=broken.get(name, ()),
        )
        for name in sorted(intervals)
    ]
    config = page.parts.live.current
    return page.render(
        "overview/services_live.html" if page.is_fragment else "overview/services.html",
        checks=readiness.run_checks(page.parts),
        agents=agents,
        schema=schema,
        config=config,
        problem=page.parts.live.problem,
        version=metadata.version("pilotage"),
        host=socket.gethostname(),
        dialect=page.parts.engine.dialect.name,
    )


def _numbers(page: PageContext) -> dict[str, Any]:
    totals = overviews.count_overview(page.parts, page.caller, now=page.parts.clock())
    shown = [status for status in _LIVING if any(status in of_vo for of_vo in totals.by_vo.values())]
    sites = sorted(page.caller.own_sites)
    glances = overviews.list_glances(page.parts, page.caller, sites) if sites else []
    return {"totals": totals, "shown": shown, "glances": glances}


def _course(page: PageContext, hours: int, vo: str) -> dict[str, Any]:
    now, caller = page.parts.clock(), page.caller
    step = timedelta(minutes=SPANS[hours])
    if caller.is_operator or caller.vos:
        found = overviews.course(page.parts, caller, vo=vo, hours=hours, step=step, now=now)
        charts = _charts(found)
    else:
        charts = accounting.draw_ended_jobs(page, hours)
    scope = readiness.scope_of(page.parts, caller)
    with database.reading(page.parts.engine) as conn:
        problems = checks.find_problems(conn, scope)
    if not vo and not (depths := accounting.draw_depths(page, hours)).is_empty:
        charts.append(depths)
    return {
        "charts": charts,
        "problems": _group_problems(problems),
        "has_problem": any(each.health.is_problem for each in problems),
        "optimizers": scope.optimizers,
        "most_listed": _LISTED,
    }


def _group_problems(found: Sequence[Finding]) -> Mapping[str, Sequence[Finding]]:
    """Problems by subject, the subject of the worst one first."""
    by_subject: dict[str, list[Finding]] = {}
    for each in found:
        by_subject.setdefault(each.subject, []).append(each)
    return by_subject


def _charts(found: StatusSeries) -> list[Chart]:
    minutes = found.step // timedelta(minutes=1)
    every = "each minute" if minutes == 1 else f"every {minutes} minutes"
    living = _lines(_LIVING, found.jobs)
    # The last step is incomplete and would look like a decline.
    none = [None] * found.unknown
    moves = _lines(
        _MOVES, {status: [*none, *came[found.unknown : -1]] for status, came in found.came.items()}
    )
    return [
        Chart(title="Jobs by status", note=_UNIT, times=found.begins, lines=living, kind="multiples"),
        Chart(
            title=f"Matched and ended, {every}",
            note=_UNIT,
            times=found.begins[:-1],
            lines=moves,
            kind="multiples",
        ),
    ]


def _lines(
    tones: Mapping[JobStatus, str], values: Mapping[JobStatus, Sequence[float | None]]
) -> list[ChartLine]:
    return [
        ChartLine(label=status, tone=tone, values=values[status])
        for status, tone in tones.items()
        if status in values
    ]
