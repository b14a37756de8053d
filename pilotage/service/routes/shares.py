"""Shares of groups and owners, and the order of jobs."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models import StrictInput
from pilotage.service.queries import shares
from pilotage.service.queries.shares import PrecedenceAnswer, SharesAnswer
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf

router = APIRouter(prefix="/shares", tags=["explanations"], route_class=ApiRoute)


class SharesQuery(StrictInput):
    """The VO."""

    vo: str | None = Field(
        default=None, max_length=255, description="Required if the token does not have exactly one."
    )


class JobPair(StrictInput):
    """Two jobs."""

    first: int = Field(ge=1, lt=2**63, description="The job that is said to come first.")
    second: int = Field(ge=1, lt=2**63, description="The other job.")


@router.get("")
@allow(Role.USER, Role.VO_ADMIN, is_expensive=True)
def show(parts: PartsOf, caller: CallerOf, query: Annotated[SharesQuery, Query()]) -> SharesAnswer:
    """Show the shares of groups and owners of a VO with waiting jobs, and the use that corrects them."""
    return shares.list_shares(parts, caller, visibility.vo_of(caller, query.vo))


@router.get("/order")
@allow(Role.USER, Role.VO_ADMIN, is_expensive=True)
def compare(parts: PartsOf, caller: CallerOf, query: Annotated[JobPair, Query()]) -> PrecedenceAnswer:
    """Tell which of two jobs a pilot for both is given first, and what decides that."""
    return shares.compare_jobs(parts, caller, query.first, query.second)
