"""The overview: how the jobs are, and what needs a look."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page_route import PageOf, PageRoute

router = APIRouter(route_class=PageRoute)


@router.get("/")
@in_navigation("Overview")
@allow(*Role)
def overview(page: PageOf) -> HTMLResponse:
    """The first page."""
    return page.render("overview/overview.html")
