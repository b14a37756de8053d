"""The web pages, one file a noun: they translate what the interface says, and decide nothing."""

from pilotage.service.pages import (
    issuer_login,
    login,
    managers,
    overview,
    pilots,
    pools,
    queues,
    sites,
    task_queues,
)

#: The pages; the navigation shows those that want to be in it in this order.
ROUTERS = (
    overview.router,
    pools.router,
    task_queues.router,
    sites.router,
    queues.router,
    pilots.router,
    managers.router,
    login.router,
    issuer_login.router,
)
