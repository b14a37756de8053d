"""Sites: how they all stand."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from pilotage.service import site_overview, site_scope
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page_route import PageOf, PageRoute
from pilotage.service.site_overview import Glance
from requirements.values import fold

router = APIRouter(route_class=PageRoute)

#: Sites on one page.
_ON_PAGE = 100
#: By what the list may be sorted; `-` before it turns it round.
_ORDERS = ("site", "queues", "running", "pilots", "could_run")


class SitesShown(BaseModel):
    """Which sites the page lists, in which order."""

    q: str = Field(default="", max_length=200, description="Part of the name.")
    state: str = Field(default="", max_length=20, description="One of `Glance.words`.")
    whose: str = Field(
        default="", pattern="^(all)?$", description="`all`: also those that do not concern one."
    )
    sort: str = Field(default="site", max_length=20)
    after: int = Field(default=0, ge=0, le=1_000_000, description="How many go before.")

    @property
    def order(self) -> str:
        """By what, without the direction."""
        name = self.sort.removeprefix("-")
        return name if name in _ORDERS else "site"


@router.get("/sites")
@in_navigation("Sites")
@allow(*EVERY_ROLE)
def list_sites(page: PageOf, query: Annotated[SitesShown, Query()]) -> HTMLResponse:
    """The sites that concern the caller, or all, at a glance."""
    config = page.parts.live.current
    known = config.sites if query.whose else site_scope.of_concern(page.caller, config)
    named = sorted(site for site in known if fold(query.q) in fold(site))
    glances = site_overview.of(page.parts, page.caller, named)
    found = [each for each in glances if not query.state or query.state in each.words]
    shown = _ordered(found, query)[query.after : query.after + _ON_PAGE]
    end = query.after + len(shown)
    return page.render(
        "sites/table.html" if page.is_fragment else "sites/list.html",
        glances=shown,
        found=len(found),
        named=len(named),
        all=len(config.sites),
        end=end,
        query=query,
    )


def _ordered(found: Sequence[Glance], query: SitesShown) -> list[Glance]:
    by_name = sorted(found, key=lambda each: fold(each.site))
    return sorted(by_name, key=lambda each: _key(each, query.order), reverse=query.sort.startswith("-"))


def _key(glance: Glance, order: str) -> str | int:
    return fold(glance.site) if order == "site" else int(getattr(glance, order))
