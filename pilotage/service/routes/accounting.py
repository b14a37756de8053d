"""Accounting: used resources and waiting times."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.queries import accounting as queries_accounting
from pilotage.service.queries.accounting import MEDIA_TYPE, AccountingAnswer, AccountingQuery
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf

router = APIRouter(tags=["accounting"], route_class=ApiRoute)

_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}


@router.get("/accounting", response_model=AccountingAnswer, responses=_CSV)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
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
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def accounting_as_csv(
    parts: PartsOf, caller: CallerOf, query: Annotated[AccountingQuery, Query()]
) -> Response:
    """Sum used resources as CSV."""
    answer = queries_accounting.read(parts, caller, query)
    return Response(queries_accounting.text(answer), media_type=MEDIA_TYPE)
