"""Job managers: the grid jobs that gateways hold, with how far their local jobs are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import Field

from pilotage.service import site_states, told
from pilotage.service.access import allow
from pilotage.service.callers import Caller, Role
from pilotage.service.models.paging import Page as Paging
from pilotage.service.models.sites import ThrottleAnswer
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database, grid_jobs, whose
from taskqueue.grid_jobs import Filter, GridJob, JobManager

router = APIRouter(route_class=PageRoute)


class GridJobsShown(Paging):
    """Which grid jobs the page lists."""

    site: str = Field(default="", max_length=255)
    after: int | None = Field(default=None, ge=0, lt=2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A job manager with what its site advertised."""

    manager: JobManager
    throttles: Sequence[ThrottleAnswer]

    @property
    def advertised_at(self) -> datetime | None:
        """When the last of the advertisements came."""
        return max((each.advertised_at for each in self.throttles if each.advertised_at), default=None)

    @property
    def stale(self) -> bool:
        """Whether one of them is too old."""
        return any(each.stale for each in self.throttles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A grid job as far as somebody is told of it."""

    job: GridJob
    is_named: bool  #: he is told whose it is, and what it is called
    has_page: bool


@router.get("/managers")
@in_navigation("Job managers")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.GATEWAY)
def list_managers(page: PageOf, query: Annotated[GridJobsShown, Query()]) -> HTMLResponse:
    """The gateways that hold grid jobs of the caller's concern, and those jobs, the newest first."""
    which = _visible(page.caller, site=query.site or None)
    with database.reading(page.parts.engine) as conn:
        managers = grid_jobs.managers(conn, which)
        found, last = query.cut(grid_jobs.find(conn, which, limit=query.enough, after=query.after))
    return page.render(
        "managers/live.html" if page.is_fragment else "managers/list.html",
        gateways=_gateways(page, managers),
        jobs=[_shown(page.caller, each) for each in found],
        next=last.job_id if last else None,
        query=query,
    )


def _visible(caller: Caller, *, site: str | None) -> Filter:
    asked = None if site is None else frozenset({site})
    every, any_of = whose.split([each.of(sites=asked) for each in told.counted(caller)])
    return Filter(vos=every.vos, sites=every.sites, owner=every.owner, any_of=any_of)


def _shown(caller: Caller, job: GridJob) -> Shown:
    return Shown(
        job=job,
        is_named=told.names(caller, vo=job.vo, owner=job.owner, site=job.site),
        has_page=told.controls(caller, vo=job.vo, owner=job.owner),
    )


def _gateways(page: PageOf, managers: Sequence[JobManager]) -> list[Gateway]:
    sites = sorted({each.site for each in managers} & page.parts.live.current.sites)
    states = site_states.briefly(page.parts, page.caller, sites) if sites else []
    throttles = {each.site: each.throttles for each in states}
    return [Gateway(manager=each, throttles=throttles.get(each.site, ())) for each in managers]
