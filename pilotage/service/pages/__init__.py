"""Web pages, one module per noun."""

from pilotage.service.pages import (
    accounting,
    configuration,
    configuration_changes,
    groups,
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
    groups.router,
    search.router,
    lists.pools_router,
    sites.router,
    lists.router,
    configuration.router,
    configuration_changes.router,
    accounting.router,
    web_hooks.router,
    interface.router,
    sign_in.router,
    sign_in.logout_router,
)
