"""Pilots: how they fare by queue, why some got nothing, what those wrote that failed."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from pydantic import Field

from pilotage.service import pilot_scope, pool_scope
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.models.paging import Page as Paging
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database, pilot_outputs, pilot_search, pilot_summary, pilots
from taskqueue.pilot_summary import Fared
from taskqueue.states import PilotStatus

router = APIRouter(route_class=PageRoute)

#: Queues that are listed; their own pages tell of the others.
_QUEUES = 20

Counted = Mapping[tuple[str, ...], Fared]


class PilotsShown(Paging):
    """Which pilots the page counts and lists; empty texts ask nothing."""

    vo: str = ""
    site: str = ""
    status: str = ""
    hours: float = Field(default=24, gt=0, le=24 * 366, description="Those that ended before are left out.")
    after: str = Field(default="", max_length=255)


@router.get("/pilots")
@in_navigation("Pilots")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_pilots(page: PageOf, query: Annotated[PilotsShown, Query()]) -> HTMLResponse:
    """The pilots of the caller's VOs, at the caller's sites."""
    which = pilot_scope.visible(
        page.caller, vo=query.vo or None, site=query.site or None, status=query.status or None
    )
    since = page.parts.clock() - timedelta(hours=query.hours)
    with database.reading(page.parts.engine) as conn:
        counted = pilot_summary.count(conn, ["queue", "status", "empty_reason"], which, ended_since=since)
        found, last = query.cut(
            pilot_search.latest(conn, which, limit=query.enough, after=query.after or None)
        )
    by_queue = sorted(_sums(counted, 0).items(), key=lambda each: (-each[1].count, each[0]))
    return page.render(
        "pilots/live.html" if page.is_fragment else "pilots/list.html",
        pilots=found,
        next=last.stamp if last else None,
        query=query,
        vos=pool_scope.vos(page.caller, page.parts.live.current.vos),
        statuses=list(PilotStatus),
        by_status=_sums(counted, 1),
        by_reason={reason: fared for reason, fared in _sums(counted, 2).items() if reason},
        by_queue=by_queue[:_QUEUES],
        left=len(by_queue[_QUEUES:]),
    )


@router.get("/pilots/{stamp}")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(page: PageOf, stamp: Annotated[str, Path(min_length=1, max_length=255)]) -> HTMLResponse:
    """One pilot, with the end of what it wrote."""
    with database.reading(page.parts.engine) as conn:
        pilot = pilots.get(conn, stamp)
        pilot_scope.require(page.caller, pilot)
        wrote = pilot_outputs.get(conn, stamp)
    return page.render("pilots/show.html", pilot=pilot, wrote=wrote)


def _sums(counted: Counted, column: int) -> dict[str, Fared]:
    """The same by one of the columns only."""
    found: dict[str, Fared] = {}
    for values, fared in counted.items():
        name = values[column]
        found[name] = found[name] + fared if name in found else fared
    return dict(sorted(found.items()))
