"""Whether the service lives, and whether it can do its work.

Metrics for Prometheus.

The public parts of the keys that sign our tokens.
"""

from datetime import timedelta

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from pilotage.service import metrics as service_metrics
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.routing import ApiRoute, PartsOf
from pilotage.service.services import Services
from taskqueue.accounting import time_series
from taskqueue.db import database
from taskqueue.jobs import unmatchable as jobs_unmatchable
from taskqueue.pilots import search
from taskqueue.pilots.search import PilotFilter

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def ready(request: Request) -> JSONResponse:
    """The database answers with a schema that fits, and the claimer is at work; 503 if not."""
    parts: Services = request.app.state.parts
    checks = {"database": _database(parts), "claimer": "ok" if parts.claimer.alive else "has ended"}
    is_ready = all(result == "ok" for result in checks.values())
    # A configuration that cannot be read is worth a look, but the one before it serves. What is wrong with it
    # is told to operators: here anybody may ask.
    notes = {"configuration": "the newest version cannot be read"} if parts.live.problem else {}
    body = {"status": "ok" if is_ready else "not ready", "checks": checks, **notes}
    return JSONResponse(body, 200 if is_ready else 503, headers={} if is_ready else {"Retry-After": "5"})


def _database(parts: Services) -> str:
    try:
        return "ok" if database.schema_state(parts.engine).current else "has no schema"
    except database.UNAVAILABLE:
        return "does not answer"


#: Pilots that ended longer ago say little of what their queues are worth now.
_RECENT = timedelta(hours=6)

metrics_router = APIRouter(tags=["health"], route_class=ApiRoute)


@metrics_router.get("/metrics", response_class=Response)
@allow(Role.MONITOR)
def metrics(parts: PartsOf) -> Response:
    """Everything in Prometheus' text format; a token of the role `monitor` reads it."""
    with database.reading(parts.engine) as conn:
        living, ended = time_series.count_current(conn), time_series.count_ended(conn)
        unmatchable = jobs_unmatchable.count_pools_without_queue(conn)
        cycles = jobs_unmatchable.list_last_cycles(conn)
        pilots = search.count_pilots(
            conn, service_metrics.BY, PilotFilter(), ended_since=parts.clock() - _RECENT
        )
    text = parts.metrics.render(
        living=living,
        ended=ended,
        unmatchable=unmatchable,
        pilots=pilots,
        cycles={agent: at.timestamp() for agent, at in cycles.items()},
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)


published_keys_router = APIRouter(tags=["health"])

#: Seconds that others may keep them; a new key verifies elsewhere when they ask again.
_KEPT = 60


@published_keys_router.get("/.well-known/jwks.json")
async def published_keys(request: Request) -> JSONResponse:
    """The keys that verify tokens of this installation, as a JWK set; needs no token."""
    parts: Services = request.app.state.parts
    content = parts.tokens.keys.published(now=parts.clock())
    return JSONResponse(content, headers={"Cache-Control": f"public, max-age={_KEPT}"})
