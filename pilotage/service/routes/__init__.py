"""The routes of the interface, one file a noun."""

from pilotage.service.routes import (
    accounting,
    config,
    explain,
    job_control,
    jobs,
    leases,
    logins,
    matcher,
    outputs,
    pilot_outputs,
    pilot_tokens,
    pilots,
    pools,
    resources,
    sandboxes,
    sites,
    submission,
    tokens,
)

#: Everything under `/api/v1`. They are tried in this order: what pilots ask comes first, since they ask
#: most; among the jobs fixed names stand before ids.
ROUTERS = (
    matcher.router,
    leases.router,
    submission.router,
    job_control.router,
    jobs.router,
    explain.router,
    outputs.router,
    sandboxes.router,
    resources.router,
    pools.router,
    config.router,
    pilots.router,
    pilot_outputs.router,
    pilot_tokens.router,
    sites.router,
    tokens.router,
    accounting.router,
    logins.router,
)
