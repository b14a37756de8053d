"""One site: what holds there, and its tree of CEs and queues."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from pilotage.service import site_overview, site_scope, site_states
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.configuring import blames
from pilotage.service.configuring.blames import Blamed
from pilotage.service.pages.page_route import PageOf, PageRoute
from requirements.values import fold
from taskqueue import database

router = APIRouter(route_class=PageRoute)

#: An address, its effective parameters, and whether the VO may use it.
Tree = Sequence[tuple[str, Sequence["Leaf"]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A queue in the tree."""

    address: QueueAddress
    parameters: Sequence[Blamed]
    usable: bool  #: by the VO that looks
    enabled: bool


@router.get("/sites/{site}")
@allow(*EVERY_ROLE)
def show_site(page: PageOf, site: str, vo: str = "") -> HTMLResponse:
    """One site: what holds there, and its tree with the effective parameters for a VO."""
    config, caller = page.parts.live.current, page.caller
    site_scope.require_known(config, site)
    state = site_states.in_full(page.parts, caller, site)
    glance = site_overview.of(page.parts, caller, [site])[0]
    with database.reading(page.parts.engine) as conn:
        jobs = site_overview.jobs_there(conn, caller, [site])
    if page.is_fragment:
        return page.render("sites/live.html", site=site, state=state, glance=glance, jobs=jobs)
    chosen = fold(vo) or caller.vo or ""
    return page.render(
        "sites/show.html",
        site=site,
        state=state,
        glance=glance,
        jobs=jobs,
        tree=_tree(page, config, site, chosen),
        vos=site_scope.vos(caller, config, site),
        vo=chosen,
        version=config.version,
        may_ban=caller.looks_after(site),
    )


def _tree(page: PageOf, config: Configuration, site: str, vo: str) -> Tree:
    queues = [address for address in config.addresses if address.site == site]
    told = blames.at_queues(page.parts, page.caller, config, queues, vo=vo)
    leaves = [
        Leaf(
            address=address,
            parameters=told[address],
            usable=not vo or config.usable(address, vo),
            enabled=config.enabled(address, vo),
        )
        for address in queues
    ]
    return [(ce, list(there)) for ce, there in groupby(leaves, key=lambda leaf: leaf.address.ce)]
