"""The routes of the interface, one file a noun."""

from pilotage.service.routes import (
    config,
    explain,
    job_control,
    jobs,
    leases,
    matcher,
    outputs,
    pilots,
    pools,
    resources,
    sandboxes,
    submission,
    tokens,
)

#: Everything under `/api/v1`. Fixed names stand before ids.
ROUTERS = (
    submission.router,
    job_control.router,
    jobs.router,
    explain.router,
    outputs.router,
    sandboxes.router,
    matcher.router,
    leases.router,
    resources.router,
    pools.router,
    config.router,
    pilots.router,
    tokens.router,
)
