"""Downtimes of sites and CEs."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Role
from pilotage.service.models import StrictInput
from pilotage.service.queries import downtimes
from pilotage.service.queries.downtimes import Feed, FeedImport, NewDowntime
from pilotage.service.queries.sites import DowntimeAnswer
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf

router = APIRouter(prefix="/downtimes", tags=["sites"], route_class=ApiRoute)

#: Bytes of a feed.
_FEED = 16 << 20


class DowntimeQuery(StrictInput):
    """Selection of downtimes."""

    site: str | None = Field(default=None, max_length=255, description="This site only.")


class DowntimeList(BaseModel):
    """Downtimes that are not over, the earliest first."""

    downtimes: list[DowntimeAnswer]


@router.get("")
@allow(*EVERY_ROLE)
def list_downtimes(parts: PartsOf, query: Annotated[DowntimeQuery, Query()]) -> DowntimeList:
    """List the downtimes that are not over."""
    return DowntimeList(downtimes=downtimes.list_downtimes(parts, query.site))


@router.post("")
@allow(Role.SITE_ADMIN, most_bytes=SMALL)
def plan(parts: PartsOf, caller: CallerOf, body: NewDowntime) -> DowntimeAnswer:
    """Plan a downtime of a site or a CE: jobs that would not end before it begins are not sent there.

    Planned again, with the same place, times and severity, it is the same downtime, with the new reason.
    """
    return downtimes.plan(parts, caller, body)


@router.post("/import")
@allow(Role.SITE_ADMIN, most_bytes=_FEED)
def import_feed(parts: PartsOf, caller: CallerOf, body: Feed) -> FeedImport:
    """Replace the downtimes of a feed, at the caller's sites, by what it states now."""
    return downtimes.import_feed(parts, caller, body)


@router.post("/{downtime_id}/remove")
@allow(Role.SITE_ADMIN)
def remove(
    parts: PartsOf, caller: CallerOf, downtime_id: Annotated[int, Path(ge=1, lt=2**63)]
) -> DowntimeList:
    """Remove a downtime; the others are listed. 404 `downtime_not_found`: there is none."""
    downtimes.remove(parts, caller, downtime_id)
    return DowntimeList(downtimes=downtimes.list_downtimes(parts, None))
