"""Web pages, one module per noun."""

from pilotage.service.pages import (
    accounting,
    configuration,
    configuration_changes,
    explanation,
    interface,
    job,
    jobs,
    overview,
    pilots,
    pools,
    queues,
    sign_in,
    sites,
)

#: All pages; the navigation lists its entries in this order.
ROUTERS = (
    overview.router,
    jobs.router,
    jobs.change_router,  # fixed names before ids
    job.new_job_router,
    job.router,
    explanation.explanation_router,
    pools.router,
    queues.task_queue_router,
    sites.router,
    sites.site_router,
    sites.offer_router,
    sites.ban_router,
    queues.router,
    pilots.router,
    pilots.manager_router,
    configuration.router,
    configuration_changes.router,
    accounting.router,
    interface.router,
    sign_in.router,
    sign_in.issuer_router,
)
