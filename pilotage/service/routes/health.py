"""Liveness, readiness, Prometheus metrics and the public keys of our tokens."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from agents import leader
from pilotage import extensions
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.metrics import BY, StateMetrics
from pilotage.service.problems import checks as problem_checks
from pilotage.service.problems import readiness
from pilotage.service.routing import ApiRoute, PartsOf
from pilotage.service.services import Services
from requirements.values import fold
from taskqueue.accounting import depths, time_series
from taskqueue.db import agent_leases, database
from taskqueue.jobs import unmatchable, waiting_ttl
from taskqueue.pilots import nodes, search
from taskqueue.pilots.search import PilotFilter
from taskqueue.sites import processes, rule_counters, scopes

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Answer if the process is alive."""
    return {"status": "ok"}


#: Seconds for which the outcome of the checks is used again.
_REMEMBERED = 1.0


class Readiness:
    """The checks of `/readyz`, made once a second however many ask, in a thread of their own."""

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self._limiter: anyio.CapacityLimiter | None = None
        self._running: asyncio.Task[JSONResponse] | None = None
        self._until = 0.0

    async def check(self) -> JSONResponse:
        """The answer of checks that ended less than a second ago, or are being made."""
        if self._parts.leaving.is_set():
            return _answer({"service": "is about to end"})
        running = self._running
        if running is None or (running.done() and asyncio.get_running_loop().time() >= self._until):
            running = self._running = asyncio.create_task(self._check())
        return await asyncio.shield(running)

    async def _check(self) -> JSONResponse:
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        answer = await anyio.to_thread.run_sync(_check, self._parts, limiter=self._limiter)
        self._until = asyncio.get_running_loop().time() + _REMEMBERED
        return answer


_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"description": "Not ready: `checks` has the reasons. `Retry-After` is 5 seconds."}
}


@router.get("/readyz", responses=_NOT_READY)
async def ready(request: Request) -> JSONResponse:
    """Check that the database stores, jobs can be matched and the clock of this host is right; else 503."""
    checks: Readiness = request.app.state.readiness
    return await checks.check()


def _check(parts: Services) -> JSONResponse:
    return _answer(readiness.run_checks(parts))


def _answer(checks: Mapping[str, str]) -> JSONResponse:
    is_ready = all(result == "ok" for result in checks.values())
    body = {"status": "ok" if is_ready else "not ready", "checks": checks}
    return JSONResponse(body, 200 if is_ready else 503, headers={} if is_ready else {"Retry-After": "5"})


#: Older pilots do not show the current quality of their queues.
_RECENT = timedelta(hours=6)
#: Time series of waiting jobs by VO and site.
_MOST_DEPTHS = 2000

metrics_router = APIRouter(tags=["health"], route_class=ApiRoute)


@metrics_router.get("/metrics", response_class=Response)
@allow(Role.MONITOR)
def metrics(parts: PartsOf) -> Response:
    """Metrics in Prometheus' text format; for a token of the role `monitor`."""
    places = frozenset(map(fold, visibility.list_scopes(parts.live.current)))
    scope = readiness.scope_of(parts, Caller(role=Role.OPERATOR, subject="metrics"))
    with database.reading(parts.engine) as conn:
        cycles = agent_leases.list_last_cycles(conn)
        expected = extensions.list_intervals(leader.INTERVALS, with_optional=False)
        overdue = leader.list_overdue(cycles, expected, now=parts.clock())
        state = StateMetrics(
            living=time_series.count_current(conn),
            ended=time_series.count_ended(conn),
            stuck_pools=unmatchable.count_stuck_pools(conn),
            unmatched=waiting_ttl.count_unmatched(conn),
            overdue={agent: agent in overdue for agent in expected},
            broken=agent_leases.list_broken(conn),
            mended=rule_counters.count_mended(conn),
            place_lookups=parts.matcher.place_lookups,
            processes=processes.list_processes(conn),
            excluded_nodes=nodes.list_excluded(conn, now=parts.clock()),
            advertised={
                scope: at.timestamp()
                for scope, at in scopes.list_advertised(conn).items()
                if scope in places  # another was removed from the configuration
            },
            now=parts.clock(),
            cycles={agent: at.timestamp() for agent, at in cycles.items() if at is not None},
            runnable=depths.read_largest(conn, since=parts.clock() - 2 * depths.INTERVAL, most=_MOST_DEPTHS),
            pilots=search.count_pilots(conn, BY, PilotFilter(ended_since=parts.clock() - _RECENT)),
            optimizer_queue=scope.optimizers,
            problems=problem_checks.count_problems(conn, scope),
            is_replica_used=parts.replica.is_used if parts.replica.is_configured else None,
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
