"""Accounting: used resources and waiting times."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.accounting import AccountingAnswer, AccountingQuery
from pilotage.service.queries import accounting as queries_accounting
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from taskqueue.db import database

router = APIRouter(tags=["accounting"], route_class=ApiRoute)

_CSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {queries_accounting.MEDIA_TYPE: {"schema": {"type": "string"}}}}
}


@router.get("/accounting", response_model=AccountingAnswer, responses=_CSV)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def accounting(
    request: Request, parts: PartsOf, caller: CallerOf, query: Annotated[AccountingQuery, Query()]
) -> AccountingAnswer | Response:
    """Sum used resources: users their own, VO admins their VO's, site admins those of their sites.

    With `Accept: text/csv` the answer is CSV.
    """
    answer = _answer(parts, caller, query)
    return _as_csv(answer) if _wants_csv(request) else answer


@router.get("/accounting.csv", response_class=Response, responses=_CSV)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def accounting_as_csv(
    parts: PartsOf, caller: CallerOf, query: Annotated[AccountingQuery, Query()]
) -> Response:
    """Sum used resources as CSV."""
    return _as_csv(_answer(parts, caller, query))


def _answer(parts: Services, caller: Caller, query: AccountingQuery) -> AccountingAnswer:
    question = queries_accounting.understand(caller, query, now=parts.clock())
    with database.reading(parts.engine) as conn:
        return queries_accounting.answer(conn, question)


def _wants_csv(request: Request) -> bool:
    return queries_accounting.MEDIA_TYPE in request.headers.get("accept", "").lower()


def _as_csv(answer: AccountingAnswer) -> Response:
    return Response(queries_accounting.text(answer), media_type=queries_accounting.MEDIA_TYPE)
