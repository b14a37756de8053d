"""Pages of sites: the list, one site with its tree, suggested offers, bans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.preview import blame
from matcher.preview.blame import Blamed
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.explain import OfferAnswer
from pilotage.service.pages.page import PageOf, PageRoute, add_to_navigation
from pilotage.service.queries import explanations, site_overview, sites
from pilotage.service.queries.site_overview import SiteGlance
from requirements.errors import InvalidRequest, Problem
from requirements.values import fold
from taskqueue.db import database

router = APIRouter(route_class=PageRoute)

#: Sites on one page.
_ON_PAGE = 100
#: Sort orders; a leading `-` reverses.
_ORDERS = ("site", "queues", "running", "pilots", "could_run")


class SitesShown(BaseModel):
    """Query of the list."""

    q: str = Field(default="", max_length=200, description="Part of the name.")
    state: str = Field(default="", max_length=20, description="One of `SiteGlance.words`.")
    whose: str = Field(
        default="", pattern="^(all)?$", description="`all`: also sites that do not concern the person."
    )
    sort: str = Field(default="site", max_length=20)
    after: int = Field(default=0, ge=0, le=1_000_000, description="Number of sites to skip.")

    @property
    def order(self) -> str:
        """The sort order without the direction."""
        name = self.sort.removeprefix("-")
        return name if name in _ORDERS else "site"


@router.get("/sites")
@add_to_navigation("Sites")
@allow(*EVERY_ROLE)
def list_sites(page: PageOf, query: Annotated[SitesShown, Query()]) -> HTMLResponse:
    """List the sites that concern the caller, or all."""
    config = page.parts.live.current
    known = config.sites if query.whose else visibility.concerned_sites(page.caller, config)
    named = sorted(site for site in known if fold(query.q) in fold(site))
    glances = site_overview.list_glances(page.parts, page.caller, named)
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


def _ordered(found: Sequence[SiteGlance], query: SitesShown) -> list[SiteGlance]:
    by_name = sorted(found, key=lambda each: fold(each.site))
    return sorted(by_name, key=lambda each: _key(each, query.order), reverse=query.sort.startswith("-"))


def _key(glance: SiteGlance, order: str) -> str | int:
    return fold(glance.site) if order == "site" else int(getattr(glance, order))


site_router = APIRouter(route_class=PageRoute)

#: CEs with their queues.
Tree = Sequence[tuple[str, Sequence["SiteTreeLeaf"]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTreeLeaf:
    """A queue in the tree."""

    address: QueueAddress
    parameters: Sequence[Blamed]
    usable: bool  #: by the selected VO
    enabled: bool


@site_router.get("/sites/{site}")
@allow(*EVERY_ROLE)
def show_site(page: PageOf, site: str, vo: str = "") -> HTMLResponse:
    """Show a site: its state, and its tree with the effective parameters for a VO."""
    config, caller = page.parts.live.current, page.caller
    visibility.require_known(config, site)
    state = sites.may_see_in_full(page.parts, caller, site)
    glance = site_overview.list_glances(page.parts, caller, [site])[0]
    with database.reading(page.parts.engine) as conn:
        jobs = site_overview.jobs_there(conn, caller, [site])
    if page.is_fragment:
        return page.render("sites/live.html", site=site, state=state, glance=glance, jobs=jobs)
    selected = fold(vo) or caller.vo or ""
    return page.render(
        "sites/show.html",
        site=site,
        state=state,
        glance=glance,
        jobs=jobs,
        tree=_tree(page, config, site, selected),
        vos=visibility.site_vos(caller, config, site),
        vo=selected,
        version=config.version,
        may_ban=caller.looks_after(site),
    )


def _tree(page: PageOf, config: Configuration, site: str, vo: str) -> Tree:
    queues = [address for address in config.addresses if address.site == site]
    values = blame.blame_at_queues(page.editor, config, queues, vo=vo)
    leaves = [
        SiteTreeLeaf(
            address=address,
            parameters=values[address],
            usable=not vo or config.usable(address, vo),
            enabled=config.enabled(address, vo),
        )
        for address in queues
    ]
    return [(ce, list(there)) for ce, there in groupby(leaves, key=lambda leaf: leaf.address.ce)]


offer_router = APIRouter(route_class=PageRoute)

#: Kinds of queues of a site for which offers are computed.
_KINDS = 30
#: Offers that are listed.
_OFFERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """An offer for a queue and those equal to it."""

    example: QueueAddress
    queues: int
    offer: OfferAnswer


@offer_router.get("/sites/{site}/offers")
@allow(*EVERY_ROLE)
def show_offers(page: PageOf, site: str) -> HTMLResponse:
    """Suggest changes of the site's queues that would attract jobs; equal queues are computed once."""
    config = page.parts.live.current
    visibility.require_known(config, site)
    kinds = {queues[0]: len(queues) for queues in _kinds(config, page.caller, site)}
    examples = list(kinds)[:_KINDS]
    found = [
        Offered(example=queue, queues=kinds[queue], offer=offer)
        for queue, offer in explanations.suggest_offers(page.parts, page.caller, site, examples)
    ]
    best = sorted(found, key=lambda each: -each.offer.gains)[:_OFFERS]
    template = "sites/offers.html" if page.is_fragment else "sites/offers_page.html"
    return page.render(template, site=site, found=best, left=len(kinds) - len(examples))


def _kinds(config: Configuration, caller: Caller, site: str) -> list[list[QueueAddress]]:
    """Group the queues of a site that are equal for every VO that the caller may see."""
    vos = visibility.site_vos(caller, config, site)
    kinds: dict[object, list[QueueAddress]] = {}
    for address in config.addresses:
        if address.site == site:
            kinds.setdefault(tuple(_offer_text(config, address, vo) for vo in vos), []).append(address)
    return sorted(kinds.values(), key=len, reverse=True)


def _offer_text(config: Configuration, address: QueueAddress, vo: str) -> frozenset[tuple[str, object]]:
    values: Mapping[str, object] = config.ad(address, vo)
    return frozenset((name, repr(value)) for name, value in values.items())


ban_router = APIRouter(route_class=PageRoute)


class BanForm(BaseModel):
    """The form to ban a site."""

    reason: str = Field(min_length=1, max_length=1000)
    until: str = Field(default="", max_length=30, description="UTC, as sent by browsers; empty: no end.")


@ban_router.post("/sites/{site}/ban")
@allow(Role.SITE_ADMIN)
def ban(page: PageOf, site: str, form: Annotated[BanForm, Form()]) -> Response:
    """Ban the site from all jobs but tests."""
    sites.ban(page.parts, page.caller, site, reason=form.reason, until=_time(form.until))
    return RedirectResponse(f"/sites/{site}", 303)


@ban_router.post("/sites/{site}/allow")
@allow(Role.SITE_ADMIN)
def allow_again(page: PageOf, site: str) -> Response:
    """Lift the ban of the site."""
    sites.allow(page.parts, page.caller, site)
    return RedirectResponse(f"/sites/{site}", 303)


def _time(text: str) -> datetime | None:
    """Parse the value of a browser's date and time field, in UTC."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest([Problem(path="until", message=f"{text!r} is not a time")]) from None
