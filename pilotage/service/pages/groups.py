"""Pages of groups of jobs: failures by site and exit code, and the progress of campaigns."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models.jobs import JobFilter
from pilotage.service.pages.page import PageOf, PageRoute, add_to_navigation
from taskqueue.db import database
from taskqueue.jobs import groups

router = APIRouter(route_class=PageRoute)

#: Groups on a page.
_LISTED = 200
#: Period over which the rate of a campaign is averaged.
_LATELY = timedelta(hours=1)


class FailuresShown(BaseModel):
    """Query of the page; empty texts are ignored."""

    vo: str = Field(default="", max_length=255)
    site: str = Field(default="", max_length=255)
    hours: float = Field(default=24, gt=0, le=24 * 366)


@router.get("/failures")
@add_to_navigation("Failures")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def list_failures(page: PageOf, query: Annotated[FailuresShown, Query()]) -> HTMLResponse:
    """Show why jobs failed: grouped by site, exit code and minor status, without names of persons."""
    wanted = JobFilter(vo=[query.vo] if query.vo else None, site=[query.site] if query.site else None)
    which = visibility.countable(page.caller, wanted, ("site", "minor_status"))
    since = page.parts.clock() - timedelta(hours=query.hours)
    with database.reading(page.parts.engine) as conn:
        found = groups.group_failures(conn, which, since=since, limit=_LISTED)
    return page.render(
        "groups/failures.html",
        found=found,
        query=query,
        total=sum(each.count for each in found.groups),
        most=groups.MAX_FAILED,
        vos=visibility.pool_vos(page.caller, page.parts.live.current.vos),
        may_list=page.caller.role is not Role.SITE_ADMIN,
    )


@router.get("/campaigns")
@add_to_navigation("Campaigns")
@allow(Role.USER, Role.VO_ADMIN)
def list_campaigns(page: PageOf) -> HTMLResponse:
    """Show the groups of the caller's jobs, one line each: how many are done, failed, left, and the rate."""
    which = visibility.visible_jobs(page.caller, JobFilter())
    since = page.parts.clock() - _LATELY
    with database.reading(page.parts.engine) as conn:
        found = groups.list_progress(conn, which, since=since, limit=_LISTED)
    return page.render(
        "groups/campaigns_live.html" if page.is_fragment else "groups/campaigns.html",
        found=found,
        most=groups.MAX_OF_STATUS,
        lately=_LATELY,
    )
