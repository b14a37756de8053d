"""Metrics for Prometheus."""

from datetime import timedelta

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pilotage.service import pilot_gauges
from pilotage.service.access import allow
from pilotage.service.api_route import ApiRoute, PartsOf
from pilotage.service.callers import Role
from taskqueue import database, measurements, pilot_summary
from taskqueue.accounting import series
from taskqueue.pilot_search import Filter

#: Pilots that ended longer ago say little of what their queues are worth now.
_RECENT = timedelta(hours=6)

router = APIRouter(tags=["health"], route_class=ApiRoute)


@router.get("/metrics", response_class=Response)
@allow(Role.MONITOR)
def metrics(parts: PartsOf) -> Response:
    """Everything in Prometheus' text format; a token of the role `monitor` reads it."""
    with database.reading(parts.engine) as conn:
        living, ended = series.stocks(conn), series.ended(conn)
        unmatchable = measurements.pools_without_queue(conn)
        cycles = measurements.last_cycles(conn)
        pilots = pilot_summary.count(conn, pilot_gauges.BY, Filter(), ended_since=parts.clock() - _RECENT)
    text = parts.metrics.render(
        living=living,
        ended=ended,
        unmatchable=unmatchable,
        pilots=pilots,
        cycles={agent: at.timestamp() for agent, at in cycles.items()},
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)
