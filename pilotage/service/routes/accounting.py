"""Accounting: used resources, waiting times, and depths of sites and queues."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.queries import accounting as queries_accounting
from pilotage.service.queries import overview, usage_records
from pilotage.service.queries.accounting import MEDIA_TYPE, AccountingAnswer, AccountingQuery
from pilotage.service.queries.usage_records import UsageRecordAnswer, UsageRecordQuery
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf

router = APIRouter(tags=["accounting"], route_class=ApiRoute)

_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}


@router.get("/accounting", response_model=AccountingAnswer, responses=_CSV)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def accounting(
    request: Request, parts: PartsOf, caller: CallerOf, query: Annotated[AccountingQuery, Query()]
) -> AccountingAnswer | Response:
    """Sum used resources: users their own, VO admins their VO's, site admins those of their sites.

    With `Accept: text/csv` the answer is CSV.
    """
    if MEDIA_TYPE in request.headers.get("accept", "").lower():
        return accounting_as_csv(parts, caller, query)
    return queries_accounting.read(parts, caller, query)


@router.get("/accounting.csv", response_class=Response, responses=_CSV)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def accounting_as_csv(
    parts: PartsOf, caller: CallerOf, query: Annotated[AccountingQuery, Query()]
) -> Response:
    """Sum used resources as CSV."""
    answer = queries_accounting.read(parts, caller, query)
    return Response(queries_accounting.text(answer), media_type=MEDIA_TYPE)


@router.get("/accounting/records")
@allow(Role.SITE_ADMIN, is_expensive=True)
def list_usage_records(
    parts: PartsOf, caller: CallerOf, query: Annotated[UsageRecordQuery, Query()]
) -> UsageRecordAnswer:
    """List what each attempt at a site used that ended in a month, page by page."""
    return usage_records.read(parts, caller, query)


class Depth(BaseModel):
    """Waiting jobs that a place could run over time; a job counts at each such place."""

    scope: str = Field(description="Site, or Site/CE/Queue.")
    jobs: list[int | None] = Field(
        description="Waiting jobs at the end of each step; null: no sample was taken."
    )


class DepthsAnswer(BaseModel):
    """Waiting jobs that sites could run over time, or one site and its queues."""

    begins: list[datetime] = Field(description="Begins of the steps, the oldest first.")
    depths: list[Depth]


@router.get("/accounting/depths")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def show_depths(
    parts: PartsOf,
    caller: CallerOf,
    site: Annotated[
        str | None, Query(max_length=200, description="This site and its queues; left out: all sites.")
    ] = None,
    hours: Annotated[int, Query(ge=1, le=168, description="How far back; samples are kept for a week.")] = 24,
) -> DepthsAnswer:
    """Show how many waiting jobs sites and queues could run, sampled every ten minutes.

    Of all VOs for admins of the site, else of the caller's.
    """
    if site is not None:
        visibility.require_known(parts.live.current, site)
    found = overview.read_depths(parts, caller, site=site, hours=hours, now=parts.clock())
    return DepthsAnswer(
        begins=list(found.begins),
        depths=[
            Depth(scope="/".join(filter(None, (site, place))), jobs=list(jobs))
            for place, jobs in sorted(found.jobs.items())
        ],
    )
