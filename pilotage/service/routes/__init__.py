"""The routes of the interface, one file a noun."""

from pilotage.service.routes import (
    accounting,
    archives,
    config,
    explain,
    jobs,
    leases,
    matcher,
    pilots,
    pools,
    resources,
    sites,
    tokens,
)

#: Everything under `/api/v1`. They are tried in this order: what pilots ask comes first, since they ask
#: most; among the jobs fixed names stand before ids.
ROUTERS = (
    matcher.router,
    leases.router,
    jobs.submission_router,
    jobs.control_router,
    jobs.router,
    explain.router,
    archives.output_router,
    archives.router,
    resources.router,
    pools.router,
    config.router,
    pilots.router,
    archives.pilot_output_router,
    pilots.exchange_router,
    sites.router,
    tokens.router,
    accounting.router,
    tokens.login_router,
)
