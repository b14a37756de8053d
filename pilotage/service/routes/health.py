"""Liveness, readiness, Prometheus metrics and the public keys of our tokens."""

from datetime import timedelta

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.metrics import BY, StateMetrics
from pilotage.service.routing import ApiRoute, PartsOf
from pilotage.service.services import Services
from taskqueue.accounting import time_series
from taskqueue.db import agent_leases, database
from taskqueue.jobs import unmatchable as jobs_unmatchable
from taskqueue.pilots import search
from taskqueue.pilots.search import PilotFilter
from taskqueue.sites import rule_check

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Answer if the process is alive."""
    return {"status": "ok"}


@router.get("/readyz")
def ready(request: Request) -> JSONResponse:
    """Check that the database has the current schema, the claimer is alive and its index loaded; else 503."""
    parts: Services = request.app.state.parts
    checks = {
        "database": _database(parts),
        "claimer": "ok" if parts.claimer.alive else "has ended",
        "index": "ok" if parts.matcher.is_loaded else "is being loaded",
    }
    is_ready = all(result == "ok" for result in checks.values())
    # An invalid new version needs attention, but the one before it serves. The fault itself is shown to
    # operators only: this route needs no token.
    notes = {"configuration": "the newest version cannot be read"} if parts.live.problem else {}
    body = {"status": "ok" if is_ready else "not ready", "checks": checks, **notes}
    return JSONResponse(body, 200 if is_ready else 503, headers={} if is_ready else {"Retry-After": "5"})


def _database(parts: Services) -> str:
    try:
        return "ok" if database.schema_state(parts.engine).current else "has no schema"
    except database.UNAVAILABLE:
        return "does not answer"


#: Older pilots do not show the current quality of their queues.
_RECENT = timedelta(hours=6)

metrics_router = APIRouter(tags=["health"], route_class=ApiRoute)


@metrics_router.get("/metrics", response_class=Response)
@allow(Role.MONITOR)
def metrics(parts: PartsOf) -> Response:
    """Metrics in Prometheus' text format; for a token of the role `monitor`."""
    with database.reading(parts.engine) as conn:
        cycles = agent_leases.list_last_cycles(conn)
        state = StateMetrics(
            living=time_series.count_current(conn),
            ended=time_series.count_ended(conn),
            unmatchable=jobs_unmatchable.count_pools_without_queue(conn),
            mended=rule_check.count_mended(conn),
            cycles={agent: at.timestamp() for agent, at in cycles.items() if at is not None},
            pilots=search.count_pilots(conn, BY, PilotFilter(), ended_since=parts.clock() - _RECENT),
        )
    return Response(parts.metrics.render(state), media_type=CONTENT_TYPE_LATEST)


#: Cache time in seconds; a new key verifies elsewhere after it.
_MAX_AGE = 60


@router.get("/.well-known/jwks.json")
async def published_keys(request: Request) -> JSONResponse:
    """The public keys that verify tokens of this installation, as a JWK set; needs no token."""
    parts: Services = request.app.state.parts
    content = parts.tokens.keys.published(now=parts.clock())
    return JSONResponse(content, headers={"Cache-Control": f"public, max-age={_MAX_AGE}"})
