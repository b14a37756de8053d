"""Search: one box for jobs, users, groups of jobs, sites, queues, pools and pilots."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection

from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow, allowed_roles
from pilotage.service.models.jobs import JobFilter
from pilotage.service.pages import jobs as jobs_pages
from pilotage.service.pages import lists
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, shows_filter
from requirements.job_fields import JOB_GROUP, JOB_NAME, OWNER
from requirements.values import fold
from taskqueue.db import database
from taskqueue.errors import JobNotFound, PilotNotFound, PoolNotFound
from taskqueue.jobs import groups, jobs, search
from taskqueue.pilots import search as pilot_search
from taskqueue.pools import listing

router = APIRouter(route_class=PageRoute)

JOB = "Job"
_CAMPAIGN = "Campaign"
#: Hits of each kind.
_MOST = 10
#: Shortest beginning of an id of a pool or a pilot.
_SHORTEST = 4
_LARGEST_ID = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Something that was found."""

    kind: str  #: such as `Site`
    name: str
    address: str


@router.get("/search")
@allow(*EVERY_ROLE, is_expensive=True)
@shows_filter
def find(page: PageOf, q: Annotated[str, Query(max_length=255)] = "") -> Response:
    """Show the job with this id, or the only hit, or else all hits by kind."""
    wanted = q.strip()
    if page.refused is not None:
        return page.render("search/hits.html", hits=(), wanted="")
    if not wanted:
        return RedirectResponse("/", 303)
    with database.reading(page.parts.engine) as conn:
        hits = [*_jobs(conn, page, wanted), *_places(page, wanted), *_ids(conn, page, wanted)]
    if len(hits) == 1 or (hits and hits[0].kind == JOB):
        return RedirectResponse(hits[0].address, 303)
    return page.render("search/hits.html", hits=hits, wanted=wanted)


def _jobs(conn: Connection, page: PageContext, wanted: str) -> Iterator[Hit]:
    """The job with this id; the lists of jobs with this owner, name or VO, and of campaigns named so."""
    caller = page.caller
    if caller.role not in allowed_roles(jobs_pages.list_jobs):
        return
    if wanted.isdecimal() and len(wanted) < _LARGEST_ID:
        with suppress(JobNotFound):
            job = visibility.require_job(caller, jobs.get_job(conn, int(wanted)))
            yield Hit(kind=JOB, name=wanted, address=f"/jobs/{job.job_id}")
    vo = fold(wanted)
    if vo in visibility.pool_vos(caller, page.parts.live.current.vos):
        yield Hit(kind="VO", name=vo, address=f"/jobs?{urlencode({'vo': vo})}")
    now = page.parts.clock()
    everything = visibility.visible_jobs(caller, JobFilter(), now=now)
    for kind, field in (("Owner", OWNER), (_CAMPAIGN, JOB_GROUP), ("Job name", JOB_NAME)):
        if search.read_page(conn, everything.where(field, {wanted}), limit=1).jobs:
            yield Hit(kind=kind, name=wanted, address=f"/jobs?{urlencode({field.name: wanted})}")
    found = groups.list_progress(conn, everything, since=now, limit=_MOST, part=wanted).groups
    for name in dict.fromkeys(each.job_group for each in found if each.job_group != wanted):
        yield Hit(kind=_CAMPAIGN, name=name, address=f"/jobs?{urlencode({JOB_GROUP.name: name})}")


def _places(page: PageContext, wanted: str) -> Iterator[Hit]:
    """Sites and queues with this in their names."""
    config, part = page.parts.live.current, fold(wanted)
    sites = sorted(site for site in config.sites if part in fold(site))
    for site in sites[:_MOST]:
        yield Hit(kind="Site", name=site, address=f"/sites/{quote(site, safe='')}")
    queues = (each for each in config.addresses if part in fold(f"{each.ce}/{each.queue}"))
    for _, each in zip(range(_MOST), queues, strict=False):
        place = "/".join(quote(name, safe="") for name in (each.site, each.ce, each.queue))
        yield Hit(kind="Queue", name=str(each), address=f"/sites/{place}")


def _ids(conn: Connection, page: PageContext, wanted: str) -> Iterator[Hit]:
    """Pools and pilots whose id is this, or begins so."""
    if len(wanted) < _SHORTEST:
        return
    caller = page.caller
    with suppress(PoolNotFound):
        yield _pool_hit(visibility.get_visible_pool(conn, caller, wanted).pool_id)
    for pool in listing.list_pools(conn, visibility.visible_pools(caller), limit=_MOST, after=wanted):
        if pool.pool_id.startswith(wanted):
            yield _pool_hit(pool.pool_id)
    if (reader := caller.within(allowed_roles(lists.show_pilot))) is None:
        return
    with suppress(PilotNotFound):
        yield _pilot_hit(lists.read_pilot(conn, reader, wanted)[0].stamp)
    if (lister := caller.within(allowed_roles(lists.list_pilots))) is None:
        return
    which = visibility.visible_pilots(lister, vo=None, site=None, status=None)
    for pilot in pilot_search.list_by_prefix(conn, which, wanted, limit=_MOST):
        yield _pilot_hit(pilot.stamp)


def _pool_hit(pool_id: str) -> Hit:
    return Hit(kind="SubmitPool", name=pool_id, address=f"/pools/{pool_id}")


def _pilot_hit(stamp: str) -> Hit:
    return Hit(kind="Pilot", name=stamp, address=f"/pilots/{quote(stamp, safe='')}")
