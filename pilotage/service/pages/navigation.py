"""The routers of all pages, in the order of the navigation."""

from fastapi import APIRouter

from pilotage import extensions
from pilotage.service.pages import (
    accounting,
    configuration,
    interface,
    job,
    jobs,
    lists,
    overview,
    search,
    sign_in,
    sites,
)

#: The pages of the program; the navigation lists its entries in this order, those of plug-ins before `LAST`.
ROUTERS = (
    overview.router,
    jobs.router,
    jobs.upload_router,
    job.router,  # ids after the fixed names
    job.group_router,
    search.router,
    lists.pools_router,
    sites.router,
    lists.router,
    configuration.router,
    configuration.changes_router,
    accounting.router,
)
LAST = (interface.router, sign_in.router, sign_in.logout_router)


def list_pages() -> list[APIRouter]:
    """All pages, also those of plug-ins."""
    return [*ROUTERS, *extensions.list_pages(), *LAST]
