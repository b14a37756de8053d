"""What a site could offer to get more work."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from pilotage.service import queue_explanations, site_scope
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.callers import Caller
from pilotage.service.models.explain import OfferAnswer
from pilotage.service.pages.page_route import PageOf, PageRoute

router = APIRouter(route_class=PageRoute)

#: Kinds of queues of a site that are asked what they could offer.
_KINDS = 30
#: Offers that are told.
_OFFERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What a queue, and those that are like it, could offer to get more work."""

    example: QueueAddress
    queues: int
    offer: OfferAnswer


@router.get("/sites/{site}/offers")
@allow(*EVERY_ROLE)
def show_offers(page: PageOf, site: str) -> HTMLResponse:
    """What the queues of a site could offer to get more work; queues that are alike are asked once."""
    config = page.parts.live.current
    site_scope.require_known(config, site)
    kinds = {queues[0]: len(queues) for queues in _kinds(config, page.caller, site)}
    asked = list(kinds)[:_KINDS]
    found = [
        Offered(example=queue, queues=kinds[queue], offer=offer)
        for queue, offer in queue_explanations.offers(page.parts, page.caller, site, asked)
    ]
    best = sorted(found, key=lambda each: -each.offer.gains)[:_OFFERS]
    template = "sites/offers.html" if page.is_fragment else "sites/offers_page.html"
    return page.render(template, site=site, found=best, left=len(kinds) - len(asked))


def _kinds(config: Configuration, caller: Caller, site: str) -> list[list[QueueAddress]]:
    """The queues of a site, those together that are the same to every VO that the caller sees."""
    vos = site_scope.vos(caller, config, site)
    kinds: dict[object, list[QueueAddress]] = {}
    for address in config.addresses:
        if address.site == site:
            kinds.setdefault(tuple(_said(config, address, vo) for vo in vos), []).append(address)
    return sorted(kinds.values(), key=len, reverse=True)


def _said(config: Configuration, address: QueueAddress, vo: str) -> frozenset[tuple[str, object]]:
    values: Mapping[str, object] = config.ad(address, vo)
    return frozenset((name, repr(value)) for name, value in values.items())
