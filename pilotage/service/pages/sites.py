"""Pages of sites and queues: the list, a site with its tree, offers, bans, excluded nodes; a batch queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Path, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from cs_config.editing import editor
from cs_config.tree import cpu_time
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.preview.impacts import BlamedParameter
from pilotage.service import configuring, error_statuses
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow, allowed_roles
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.explain import QueueExplanation
from pilotage.service.pages import accounting, lists
from pilotage.service.pages.page import (
    PageContext,
    PageOf,
    PageRoute,
    PageUrl,
    RefusedForm,
    add_to_navigation,
    shows_filter,
)
from pilotage.service.pages.templating import Chart
from pilotage.service.queries import downtimes, explanations, overview, sites
from pilotage.service.queries.downtimes import NewDowntime
from pilotage.service.queries.overview import SiteGlance
from pilotage.service.routing import QueueOf
from requirements.errors import InvalidRequest, NotAllowed, Problem, require_names, require_text
from requirements.values import fold
from taskqueue.db import database
from taskqueue.pilots import search
from taskqueue.pilots.search import PilotCounts
from taskqueue.pools import listing, mapping
from taskqueue.sites.closures import Severity

router = APIRouter(route_class=PageRoute)

#: Sites on one page.
_ON_PAGE = 100
#: Queues that directors serve, on the page of a site; paused ones come first.
_SERVED = 50
#: Shapes of hardware there, the latest first.
_SHAPES = 30
#: Periods of the charts of waiting jobs.
_DEPTH_HOURS = (24, 168)
#: Columns that sites can be sorted by, beside their names.
_NUMBERS = frozenset({"queues", "running", "pilots", "could_run"})


class SitesShown(BaseModel):
    """Query parameters of the page of sites."""

    q: str = Field(default="", max_length=200, description="Part of the name.")
    state: str = Field(default="", max_length=20, description="One of `overview.STATES`; empty: any.")
    whose: str = Field(
        default="", pattern="^(all)?$", description="`all`: also sites that do not concern the person."
    )
    sort: str = Field(default="site", max_length=20)
    after: int = Field(default=0, ge=0, le=1_000_000, description="Number of sites to skip.")


@router.get("/sites")
@add_to_navigation("Sites")
@allow(*EVERY_ROLE)
@shows_filter
def list_sites(page: PageOf, query: Annotated[SitesShown, Query()]) -> HTMLResponse:
    """List the sites that concern the caller, or all."""
    if query.state:
        require_names("state", [query.state], overview.STATES)
    config = page.parts.live.current
    known = config.sites if query.whose else visibility.concerned_sites(page.caller, config)
    named = sorted(site for site in known if fold(query.q) in fold(site))
    glances = overview.list_glances(page.parts, page.caller, named)
    found = [each for each in glances if not query.state or query.state in each.words]
    shown = _sort(found, query.sort)[query.after : query.after + _ON_PAGE]
    end = query.after + len(shown)
    return page.render(
        "sites/table.html" if page.is_fragment else "sites/list.html",
        glances=shown,
        found=len(found),
        named=len(named),
        all=len(config.sites),
        end=end,
        query=query,
        states=list(overview.STATES.items()),
    )


def _sort(found: Sequence[SiteGlance], order: str) -> list[SiteGlance]:
    """Sort by name, or by a number and then by name; `-` reverses."""
    column, is_reversed = order.removeprefix("-"), order.startswith("-")
    is_number = column in _NUMBERS
    by_name = sorted(found, key=lambda each: fold(each.site), reverse=is_reversed and not is_number)
    return sorted(by_name, key=attrgetter(column), reverse=is_reversed) if is_number else by_name


@router.get("/sites/{site}")
@allow(*EVERY_ROLE)
@shows_filter
def show_site(page: PageOf, site: str, vo: str = "") -> HTMLResponse:
    """Show a site: its state, and its tree with the effective parameters for a VO."""
    return _render_site(page, site, vo)


def _render_site(
    page: PageContext, site: str, vo: str = "", refused: RefusedForm | None = None
) -> HTMLResponse:
    """The page of a site, or its live part; with one of its forms as it was refused."""
    config, caller = page.parts.live.current, page.caller
    visibility.require_known(config, site)
    state = sites.describe_site(page.parts, caller, site)
    glance = overview.list_glances(page.parts, caller, [site])[0]
    with database.reading(page.parts.engine) as conn:
        jobs = overview.jobs_there(conn, caller, [site])
    may_ban = caller.looks_after(site)
    sees_pilots = caller.role in allowed_roles(lists.list_pilots)
    nodes = sites.list_excluded_nodes(page.parts, caller, site) if sees_pilots else []
    seen = sites.list_hardware(page.parts, [site])[:_SHAPES]
    served = sites.list_served_queues(page.parts, caller, site) if sees_pilots else []
    if page.is_fragment:
        return page.render(
            "sites/live.html",
            site=site,
            state=state,
            glance=glance,
            jobs=jobs,
            nodes=nodes,
            hardware=seen,
            served=served[:_SERVED],
            may_ban=may_ban,
        )
    vos = visibility.site_vos(caller, config, site)
    if vo and fold(vo) not in vos:
        raise NotAllowed(f"{vo!r:.80} is not a VO of the token")
    selected = fold(vo) or caller.vo or ""
    queues = [address for address in config.addresses if address.site == site]
    occupied = overview.count_at_queues(page.parts, caller, site)
    return page.render(
        "sites/show.html",
        status=200 if refused is None else error_statuses.status_of(refused.error),
        here=PageUrl(path=f"/sites/{quote(site, safe='')}", query=page.url.query),
        refused=refused,
        site=site,
        state=state,
        glance=glance,
        jobs=jobs,
        occupied=occupied,
        waiting=overview.count_waiting_for_queues(page.parts, caller, site),
        ces=[(ce, list(there)) for ce, there in groupby(queues, key=lambda queue: queue.ce)],
        config=config,
        cpu_times={queue: _find_cpu_time(config, queue, selected) for queue in queues},
        vos=vos,
        vo=selected,
        may_ban=may_ban,
        nodes=nodes,
        hardware=seen,
        served=served[:_SERVED],
        charts=_draw_charts(page, site),
    )


def _draw_charts(page: PageContext, site: str) -> list[Chart]:
    """What ended, ran and waited there over time, as far as the caller may count it."""
    found = [accounting.draw_depths(page, hours, site) for hours in _DEPTH_HOURS]
    if page.caller.role in allowed_roles(accounting.show):
        found = [*accounting.draw_jobs_at_site(page, site, _DEPTH_HOURS[0]), *found]
    return [each for each in found if not each.is_empty]


#: Kinds of queues of a site for which offers are computed.
_KINDS = 30
#: Offers that are listed.
_OFFERS = 20


def _find_cpu_time(config: Configuration, queue: QueueAddress, vo: str) -> int:
    """Normalised CPU seconds that pilots offer at a queue, whichever parameters limit them."""
    known = {fold(name): value for name, value in config.values(queue, vo).items()}
    return cpu_time.find_offered(known)


@router.get("/sites/{site}/offers")
@allow(*EVERY_ROLE)
def show_offers(page: PageOf, site: str) -> HTMLResponse:
    """Suggest changes of the site's queues that would attract jobs; equal queues are computed once."""
    config = page.parts.live.current
    visibility.require_known(config, site)
    kinds = _count_kinds(config, visibility.site_vos(page.caller, config, site), site)
    examples = list(kinds)[:_KINDS]
    found, unread = explanations.suggest_offers(page.parts, page.caller, site, examples)
    best = sorted(found, key=lambda each: -each[1].gains)[:_OFFERS]
    template = "sites/offers.html" if page.is_fragment else "sites/offers_page.html"
    left = len(kinds) - len(examples)
    return page.render(template, site=site, found=best, kinds=kinds, left=left, unread=unread)


def _count_kinds(config: Configuration, vos: Sequence[str], site: str) -> dict[QueueAddress, int]:
    """A queue of each kind, those equal for every VO, with the number of queues; the largest kind first."""
    kinds: dict[object, list[QueueAddress]] = {}
    for address in config.addresses:
        if address.site == site:
            ads = (config.ad(address, vo) for vo in vos)
            kind = tuple(frozenset((name, repr(value)) for name, value in ad.items()) for ad in ads)
            kinds.setdefault(kind, []).append(address)
    return {queues[0]: len(queues) for queues in sorted(kinds.values(), key=len, reverse=True)}


class BanForm(BaseModel):
    """The form to ban a site."""

    reason: str = Field(min_length=1, max_length=1000)
    until: str = Field(default="", max_length=30, description="UTC, as sent by browsers; empty: no end.")


@router.post("/sites/{site}/ban")
@allow(Role.SITE_ADMIN)
def ban(page: PageOf, site: str, form: Annotated[BanForm, Form()]) -> Response:
    """Ban the site from all jobs but tests."""
    try:
        reason = require_text("reason", form.reason)
        until = _read_time(form.until, "until") if form.until else None
        sites.ban(page.parts, page.caller, site, reason=reason, until=until)
    except InvalidRequest as error:
        return _render_site(page, site, refused=RefusedForm(name="ban", values=dict(form), error=error))
    return RedirectResponse(f"/sites/{site}", 303)


@router.post("/sites/{site}/allow")
@allow(Role.SITE_ADMIN)
def allow_again(page: PageOf, site: str) -> Response:
    """Lift the ban of the site."""
    sites.allow(page.parts, page.caller, site)
    return RedirectResponse(f"/sites/{site}", 303)


@router.post("/sites/{site}/readmit")
@allow(Role.SITE_ADMIN)
def readmit(page: PageOf, site: str, node: Annotated[str, Form(min_length=1, max_length=255)]) -> Response:
    """Give a node of the site jobs again."""
    sites.readmit_node(page.parts, page.caller, site, node)
    return RedirectResponse(f"/sites/{site}", 303)


class DowntimeForm(BaseModel):
    """The form to plan a downtime."""

    place: str = Field(min_length=1, max_length=255, description="The site, or `Site/CE`.")
    begins: str = Field(min_length=1, max_length=30, description="UTC, as sent by browsers.")
    ends: str = Field(min_length=1, max_length=30)
    severity: Severity = Severity.OUTAGE
    reason: str = Field(min_length=1, max_length=1000)


@router.post("/sites/{site}/downtimes")
@allow(Role.SITE_ADMIN)
def plan_downtime(page: PageOf, site: str, form: Annotated[DowntimeForm, Form()]) -> Response:
    """Plan a downtime of the site or of one of its CEs."""
    try:
        stated: dict[str, object] = {"reason": require_text("reason", form.reason)}
        stated |= {name: _read_time(getattr(form, name), name) for name in ("begins", "ends")}
        downtimes.plan(page.parts, page.caller, NewDowntime.model_validate(form.model_dump() | stated))
    except InvalidRequest as error:
        return _render_site(page, site, refused=RefusedForm(name="downtime", values=dict(form), error=error))
    return RedirectResponse(f"/sites/{site}", 303)


@router.post("/sites/{site}/downtimes/{downtime_id}/remove")
@allow(Role.SITE_ADMIN)
def remove_downtime(page: PageOf, site: str, downtime_id: Annotated[int, Path(ge=1, lt=2**63)]) -> Response:
    """Remove a downtime."""
    downtimes.remove(page.parts, page.caller, downtime_id)
    return RedirectResponse(f"/sites/{site}", 303)


def _read_time(text: str, field: str) -> datetime:
    """Parse the value of a browser's date and time field, in UTC."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest([Problem(path=field, message=f"{text!r} is not a time")]) from None


#: Pools of a queue that are listed.
_POOLS = 20
#: Older pilots are not counted, as on the page of pilots.
_RECENT = timedelta(days=1)

_Text = Annotated[str, Form(max_length=1000)]


@router.get("/sites/{site}/{ce}/{queue}")
@allow(*EVERY_ROLE)
@shows_filter
def show_queue(
    page: PageOf, address: QueueOf, vo: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """Show a queue with its parameters for a VO."""
    config, caller = page.parts.live.current, page.caller
    explained = explanations.explain_queue(page.parts, caller, config.require(address))
    pilots = _pilots(page, address) if caller.role in allowed_roles(lists.list_pilots) else None
    if page.is_fragment:
        return page.render("sites/queue_live.html", address=address, explained=explained, pilots=pilots)
    return _whole(page, address, vo, explained, pilots)


def _whole(
    page: PageContext,
    address: QueueAddress,
    vo: str,
    explained: QueueExplanation,
    pilots: "QueuePilots | None",
) -> HTMLResponse:
    config, caller = page.parts.live.current, page.caller
    vos = visibility.site_vos(caller, config, address.site)
    selected = fold(vo) or _default_vo(config, caller, address, vos)
    values: Sequence[BlamedParameter] = ()
    if selected:
        values = configuring.blame_values(page.parts, page.editor, config, path=str(address), vo=selected)
    with database.reading(page.parts.engine) as conn:
        served = mapping.list_mapped_pools(conn, vos, [address])[address]
        ids = [each.pool_id for each in served[:_POOLS]]
        originals = mapping.read_originals(conn, ids)
        jobs = listing.count_jobs_by_status(conn, ids)
    return page.render(
        "sites/queue.html",
        address=address,
        vos=vos,
        vo=selected,
        parameters=[each for each in values if each.line.places],
        config=config,
        drained=editor.is_drained(config, address),
        is_closed=any(
            each.closes(str(address)) for each in downtimes.list_downtimes(page.parts, address.site)
        ),
        may_switch=page.editor.may_switch(address),
        served=served,
        originals=originals,
        jobs=jobs,
        shown=_POOLS,
        explained=explained,
        pilots=pilots,
    )


@router.post("/sites/{site}/{ce}/{queue}/drain")
@allow(Role.SITE_ADMIN)
def drain(page: PageOf, address: QueueOf, message: _Text = "") -> Response:
    """Disable the queue for new jobs."""
    page.editor.switch_queue(address, drained=True, message=message)
    return RedirectResponse(f"/sites/{address}", 303)


@router.post("/sites/{site}/{ce}/{queue}/resume")
@allow(Role.SITE_ADMIN)
def resume(page: PageOf, address: QueueOf, message: _Text = "") -> Response:
    """Enable the queue again."""
    page.editor.switch_queue(address, drained=False, message=message)
    return RedirectResponse(f"/sites/{address}", 303)


def _default_vo(config: Configuration, caller: Caller, address: QueueAddress, vos: Sequence[str]) -> str:
    """The caller's VO, else the first that may use the queue."""
    if caller.vo in vos:
        return caller.vo or ""
    return next((vo for vo in vos if config.usable(address, vo)), vos[0] if vos else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePilots:
    """The pilots of a queue."""

    by_status: Mapping[str, PilotCounts]
    failed_jobs: int

    @property
    def whole(self) -> PilotCounts | None:
        """Of all statuses; None: there are no pilots."""
        counts = list(self.by_status.values())
        return sum(counts[1:], counts[0]) if counts else None


def _pilots(page: PageOf, address: QueueAddress) -> QueuePilots:
    visible = visibility.visible_pilots(page.caller, vo=None, site=address.site, status=None)
    which = replace(visible, ce=address.ce, queue=address.queue, ended_since=page.parts.clock() - _RECENT)
    with page.parts.replica.reading() as conn:
        counted = search.count_pilots(conn, ["status"], which)
        failed = search.count_failed_jobs(conn, ["queue"], which)
    return QueuePilots(
        by_status={status: fared for (status,), fared in counted.items()}, failed_jobs=sum(failed.values())
    )
