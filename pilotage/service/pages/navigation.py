"""The routers of all pages, in the order of the navigation."""

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
    web_hooks,
)

#: All pages; the navigation lists its entries in this order.
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
    web_hooks.router,
    interface.router,
    sign_in.router,
    sign_in.logout_router,
)
