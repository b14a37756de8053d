"""The routers of `/api/v1`, in the order in which they are matched."""

from pilotage.service.routes import (
    accounting,
    archives,
    config,
    downtimes,
    job_plans,
    jobs,
    leases,
    matcher,
    pilots,
    pools,
    resources,
    shares,
    sites,
    tokens,
)

#: Matched in this order: requests of pilots first, since they are most frequent; fixed names of jobs before
#: ids.
ROUTERS = (
    matcher.router,
    leases.router,
    job_plans.router,
    jobs.submission_router,
    jobs.control_router,
    jobs.router,
    jobs.explain_router,
    archives.output_router,
    archives.router,
    resources.router,
    pools.router,
    shares.router,
    config.router,
    pilots.router,
    pilots.batch_router,
    archives.pilot_output_router,
    tokens.exchange_router,
    sites.router,
    sites.hardware_router,
    downtimes.router,
    sites.process_router,
    tokens.router,
    accounting.router,
    tokens.login_router,
    tokens.device_router,
    tokens.device_token_router,
)
