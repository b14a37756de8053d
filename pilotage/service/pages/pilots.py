"""Pages of pilots (outcomes by queue, reasons of empty ones, output) and of job managers with grid jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from pydantic import Field

from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import ListPage as Paging
from pilotage.service.pages.page import PageOf, PageRoute, add_to_navigation
from pilotage.service.queries import sites as queries_sites
from pilotage.service.queries.sites import ThrottleAnswer
from taskqueue import ownership
from taskqueue.db import database
from taskqueue.jobs import grid_jobs
from taskqueue.jobs.grid_jobs import GridJobFilter, JobManager, ManagedGridJob
from taskqueue.pilots import pilots, search
from taskqueue.pilots.search import PilotCounts
from taskqueue.states import PilotStatus

router = APIRouter(route_class=PageRoute)

#: Queues that are listed; others have their own pages.
_QUEUES = 20

Counted = Mapping[tuple[str, ...], PilotCounts]


class PilotsShown(Paging):
    """Query of the page; empty texts are ignored."""

    vo: str = ""
    site: str = ""
    status: str = ""
    hours: float = Field(default=24, gt=0, le=24 * 366, description="Leave out pilots that ended before.")
    after: str = Field(default="", max_length=255)


@router.get("/pilots")
@add_to_navigation("Pilots")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_pilots(page: PageOf, query: Annotated[PilotsShown, Query()]) -> HTMLResponse:
    """List the pilots of the caller's VOs, at the caller's sites."""
    which = visibility.visible_pilots(
        page.caller, vo=query.vo or None, site=query.site or None, status=query.status or None
    )
    since = page.parts.clock() - timedelta(hours=query.hours)
    with database.reading(page.parts.engine) as conn:
        counted = search.count_pilots(conn, ["queue", "status", "empty_reason"], which, ended_since=since)
        found, last = query.cut(
            search.list_latest(conn, which, limit=query.enough, after=query.after or None)
        )
    by_queue = sorted(_sums(counted, 0).items(), key=lambda each: (-each[1].count, each[0]))
    return page.render(
        "pilots/live.html" if page.is_fragment else "pilots/list.html",
        pilots=found,
        next=last.stamp if last else None,
        query=query,
        vos=visibility.pool_vos(page.caller, page.parts.live.current.vos),
        statuses=list(PilotStatus),
        by_status=_sums(counted, 1),
        by_reason={reason: fared for reason, fared in _sums(counted, 2).items() if reason},
        by_queue=by_queue[:_QUEUES],
        left=len(by_queue[_QUEUES:]),
    )


@router.get("/pilots/{stamp}")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(page: PageOf, stamp: Annotated[str, Path(min_length=1, max_length=255)]) -> HTMLResponse:
    """Show one pilot, with the end of its output."""
    with database.reading(page.parts.engine) as conn:
        pilot = pilots.get_pilot(conn, stamp)
        visibility.require_pilot(page.caller, pilot)
        wrote = pilots.get_output(conn, stamp)
    return page.render("pilots/show.html", pilot=pilot, wrote=wrote)


def _sums(counted: Counted, column: int) -> dict[str, PilotCounts]:
    """Sum over all columns but one."""
    found: dict[str, PilotCounts] = {}
    for values, fared in counted.items():
        name = values[column]
        found[name] = found[name] + fared if name in found else fared
    return dict(sorted(found.items()))


manager_router = APIRouter(route_class=PageRoute)


class GridJobsShown(Paging):
    """Query of the page."""

    site: str = Field(default="", max_length=255)
    after: int | None = Field(default=None, ge=0, lt=2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """A job manager with its site's throttles."""

    manager: JobManager
    throttles: Sequence[ThrottleAnswer]

    @property
    def advertised_at(self) -> datetime | None:
        """Time of the latest advertisement."""
        return max((each.advertised_at for each in self.throttles if each.advertised_at), default=None)

    @property
    def stale(self) -> bool:
        """Whether an advertisement is outdated."""
        return any(each.stale for each in self.throttles)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobView:
    """A grid job as far as the person may see it."""

    job: ManagedGridJob
    is_named: bool  #: the person may see its owner and name
    has_page: bool


@manager_router.get("/managers")
@add_to_navigation("Job managers")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.GATEWAY)
def list_managers(page: PageOf, query: Annotated[GridJobsShown, Query()]) -> HTMLResponse:
    """List the gateways with grid jobs that the person may count, and these jobs, newest first."""
    which = _visible(page.caller, site=query.site or None)
    with database.reading(page.parts.engine) as conn:
        managers = grid_jobs.list_managers(conn, which)
        found, last = query.cut(grid_jobs.list_grid_jobs(conn, which, limit=query.enough, after=query.after))
    return page.render(
        "managers/live.html" if page.is_fragment else "managers/list.html",
        gateways=_gateways(page, managers),
        jobs=[_grid_job_view(page.caller, each) for each in found],
        next=last.job_id if last else None,
        query=query,
    )


def _visible(caller: Caller, *, site: str | None) -> GridJobFilter:
    wanted = None if site is None else frozenset({site})
    every, any_of = ownership.split_common(
        [each.narrow(sites=wanted) for each in visibility.may_count(caller)]
    )
    return GridJobFilter(vos=every.vos, sites=every.sites, owner=every.owner, any_of=any_of)


def _grid_job_view(caller: Caller, job: ManagedGridJob) -> GridJobView:
    return GridJobView(
        job=job,
        is_named=visibility.names(caller, vo=job.vo, owner=job.owner, site=job.site),
        has_page=visibility.controls(caller, vo=job.vo, owner=job.owner),
    )


def _gateways(page: PageOf, managers: Sequence[JobManager]) -> list[GatewayView]:
    sites = sorted({each.site for each in managers} & page.parts.live.current.sites)
    states = queries_sites.briefly(page.parts, page.caller, sites) if sites else []
    throttles = {each.site: each.throttles for each in states}
    return [GatewayView(manager=each, throttles=throttles.get(each.site, ())) for each in managers]
