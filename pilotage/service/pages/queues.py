"""One queue: what it says to a VO and since when, what it keeps away, whom it serves, who is there."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from pilotage.service import pilot_scope, queue_explanations, queue_switch, site_scope
from pilotage.service.access import EVERY_ROLE, allow, allowed_roles
from pilotage.service.api_route import QueueOf
from pilotage.service.callers import Caller, Role
from pilotage.service.configuring import blames
from pilotage.service.models.explain import QueueExplanation
from pilotage.service.pages import pilots as pilot_pages
from pilotage.service.pages.page import Page
from pilotage.service.pages.page_route import PageOf, PageRoute
from requirements import readable
from requirements.values import fold
from taskqueue import database, pilot_summary, pool_usage, pools, served_pools
from taskqueue.job_counts import Count
from taskqueue.pilot_summary import Fared
from taskqueue.states import JobStatus

router = APIRouter(route_class=PageRoute)

#: Pools of a queue that are listed.
_POOLS = 20
#: Pilots that ended before are not counted, as on the page of pilots.
_RECENT = timedelta(days=1)

_Text = Annotated[str, Form(max_length=1000)]


@router.get("/sites/{site}/{ce}/{queue}")
@allow(*EVERY_ROLE)
def show_queue(
    page: PageOf, address: QueueOf, vo: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """One queue, as a VO gets it."""
    config, caller = page.parts.live.current, page.caller
    explained = queue_explanations.of_queue(page.parts, caller, config.require(address))
    pilots = _pilots(page, address) if caller.role in allowed_roles(pilot_pages.list_pilots) else None
    if page.is_fragment:
        return page.render("sites/queue_live.html", address=address, explained=explained, pilots=pilots)
    return _whole(page, address, vo, explained, pilots)


def _whole(
    page: Page,
    address: QueueAddress,
    vo: str,
    explained: QueueExplanation,
    pilots: Mapping[str, Fared] | None,
) -> HTMLResponse:
    config, caller = page.parts.live.current, page.caller
    vos = site_scope.vos(caller, config, address.site)
    chosen = fold(vo) or _usual(config, caller, address, vos)
    told = blames.read(page.parts, caller, config, path=str(address), vo=chosen) if chosen else ()
    served, asks, jobs = _pools(page, address, vos)
    return page.render(
        "sites/queue.html",
        address=address,
        vos=vos,
        vo=chosen,
        parameters=[each for each in told if each.line.places],
        expired=config.expired(address, chosen).values(),
        usable=config.usable(address, chosen) if chosen else None,
        enabled=config.enabled(address, chosen),
        drained=queue_switch.is_drained(config, address),
        may_switch=queue_switch.may_switch(caller, address),
        served=served,
        asks=asks,
        jobs=jobs,
        shown=_POOLS,
        explained=explained,
        pilots=pilots,
        version=config.version,
    )


@router.post("/sites/{site}/{ce}/{queue}/drain")
@allow(Role.SITE_ADMIN)
def drain(page: PageOf, address: QueueOf, message: _Text = "") -> Response:
    """Switch the queue off for new jobs."""
    queue_switch.drain(page.parts, page.caller, address, message=message)
    return RedirectResponse(f"/sites/{address}", 303)


@router.post("/sites/{site}/{ce}/{queue}/resume")
@allow(Role.SITE_ADMIN)
def resume(page: PageOf, address: QueueOf, message: _Text = "") -> Response:
    """Switch the queue on again."""
    queue_switch.resume(page.parts, page.caller, address, message=message)
    return RedirectResponse(f"/sites/{address}", 303)


def _usual(config: Configuration, caller: Caller, address: QueueAddress, vos: Sequence[str]) -> str:
    """The VO that one looks as if none is chosen: one's own, else the first that may use the queue."""
    if caller.vo in vos:
        return caller.vo or ""
    return next((vo for vo in vos if config.usable(address, vo)), vos[0] if vos else "")


def _pools(
    page: PageOf, address: QueueAddress, vos: Sequence[str]
) -> tuple[
    Sequence[served_pools.MappedPool], Mapping[str, Sequence[str]], Mapping[str, Mapping[JobStatus, Count]]
]:
    """The pools that the queue is eligible for, with what the first of them ask and their jobs."""
    with database.reading(page.parts.engine) as conn:
        served = served_pools.for_queues(conn, vos, [address])[address]
        ids = [each.pool_id for each in served[:_POOLS]]
        originals = pools.originals(conn, ids)
        jobs = pool_usage.jobs_by_status(conn, ids)
    return served, {pool_id: readable.lines(each) for pool_id, each in originals.items()}, jobs


def _pilots(page: PageOf, address: QueueAddress) -> Mapping[str, Fared]:
    which = pilot_scope.visible(page.caller, vo=None, site=address.site, status=None)
    with database.reading(page.parts.engine) as conn:
        since = page.parts.clock() - _RECENT
        counted = pilot_summary.count(conn, ["queue", "status"], which, ended_since=since)
    return {status: fared for (queue, status), fared in counted.items() if queue == str(address)}
