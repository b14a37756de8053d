"""The web pages, one file a noun: they translate what the interface says, and decide nothing."""

from pilotage.service.pages import (
    accounting,
    banning,
    changing_jobs,
    configuration,
    interface,
    issuer_login,
    job,
    jobs,
    login,
    managers,
    new_jobs,
    overview,
    pilots,
    pools,
    queues,
    site,
    site_offers,
    sites,
    task_queues,
    why,
)

#: The pages; the navigation shows those that want to be in it in this order.
ROUTERS = (
    overview.router,
    jobs.router,
    changing_jobs.router,  # fixed names before ids
    new_jobs.router,
    job.router,
    why.router,
    pools.router,
    task_queues.router,
    sites.router,
    site.router,
    site_offers.router,
    banning.router,
    queues.router,
    pilots.router,
    managers.router,
    *configuration.ROUTERS,
    accounting.router,
    interface.router,
    login.router,
    issuer_login.router,
)
