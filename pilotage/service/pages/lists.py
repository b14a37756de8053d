"""Lists of SubmitPools, task queues, pilots and job managers; pages of one pool and of one pilot."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from cs_config.options.registry import DEFAULT_SHARE
from matcher.explain import job_conditions
from matcher.explain.job_conditions import ClassCondition, JobDemand
from matcher.index import type_order
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import ListPage
from pilotage.service.pages.page import PageOf, PageRoute, add_to_navigation, shows_filter
from pilotage.service.queries import shares
from pilotage.service.queries import sites as queries_sites
from requirements.requirement_class import RequirementClass
from requirements.states import LocalJobsStatus, PilotStatus
from taskqueue.db import database
from taskqueue.jobs import grid_jobs
from taskqueue.leases import attempts
from taskqueue.leases.attempts import PilotJob
from taskqueue.pilots import pilots, search
from taskqueue.pilots.pilots import Pilot
from taskqueue.pilots.search import PilotCounts
from taskqueue.pools import listing
from taskqueue.sites import processes
from taskqueue.task_queues import listing as task_queues_listing

pools_router = APIRouter(route_class=PageRoute)

#: Queues of a pool that are listed.
_POOL_QUEUES = 2000


class PoolsShown(ListPage):
    """Query parameters of the page that lists pools."""

    vo: str = Field(default="", description="Empty: all visible VOs.")
    after: str = Field(default="", max_length=64)


@pools_router.get("/pools")
@add_to_navigation("Pools")
@allow(*EVERY_ROLE)
@shows_filter
def list_pools(page: PageOf, query: Annotated[PoolsShown, Query()]) -> HTMLResponse:
    """List the pools of the caller's VOs, and those served by queues at its sites, by id."""
    config = page.parts.live.current
    which = visibility.visible_pools(page.caller, vo=query.vo or None)
    with page.parts.replica.reading() as conn:
        found = listing.list_pools(conn, which, limit=query.fetch_limit, after=query.after)
        ids = [pool.pool_id for pool in found]
        queues = listing.count_queues(conn, ids)
        jobs = listing.count_jobs_by_status(conn, ids)
    return page.render_list(
        "pools",
        query,
        found,
        lambda pool: pool.pool_id,
        queues=queues,
        jobs=jobs,
        vos=visibility.pool_vos(page.caller, config.vos),
        version=config.version,
    )


@pools_router.get("/pools/{pool_id}")
@allow(*EVERY_ROLE)
def show_pool(page: PageOf, pool_id: Annotated[str, Path(max_length=64)]) -> HTMLResponse:
    """Show one pool with its queues by site, and its jobs by status."""
    with database.reading(page.parts.engine) as conn:
        pool = visibility.get_visible_pool(conn, page.caller, pool_id)
        eligible = listing.list_queues(conn, [pool_id]).get(pool_id, [])
        jobs = listing.count_jobs_by_status(conn, [pool_id]).get(pool_id, {})
    queues = visibility.visible_queues(page.caller, pool, eligible)
    by_site = groupby(queues[:_POOL_QUEUES], key=lambda queue: queue.site)
    return page.render(
        "pools/show.html",
        pool=pool,
        queues=len(eligible),
        sites=[(site, list(there)) for site, there in by_site],
        left=max(0, len(queues) - _POOL_QUEUES),
        elsewhere=len(eligible) - len(queues),
        jobs=jobs,
        version=page.parts.live.current.version,
    )


class TaskQueuesShown(ListPage):
    """Query of the list; empty texts are ignored."""

    vo: str = ""
    group: str = ""
    owner: str = ""
    pool: str = Field(default="", max_length=64)
    after: int = Field(default=0, ge=0, lt=2**63)


@pools_router.get("/task-queues")
@allow(Role.USER, Role.VO_ADMIN, Role.DIRECTOR)
@shows_filter
def list_task_queues(page: PageOf, query: Annotated[TaskQueuesShown, Query()]) -> HTMLResponse:
    """List the task queues with jobs: users their own, others those of their VOs."""
    config = page.parts.live.current
    which = visibility.task_queues(
        page.caller,
        vo=query.vo or None,
        owner=query.owner or None,
        owner_group=query.group or None,
        submit_pool=query.pool or None,
    )
    with page.parts.replica.reading() as conn:
        found = task_queues_listing.list_task_queues(conn, which, limit=query.fetch_limit, after=query.after)
    return page.render_list(
        "task_queues",
        query,
        found,
        lambda each: each.task_queue.task_queue_id,
        vos=visibility.pool_vos(page.caller, config.vos),
        shares={name: group.job_share for name, group in config.registry.groups.items()},
        default_share=DEFAULT_SHARE,
        tiers={
            each.task_queue.task_queue_id: type_order.find_tier(config, each.task_queue) for each in found
        },
        list_conditions=_list_conditions,
    )


#: Id of a job.
JobId = Annotated[int, Field(ge=1, lt=2**63)]


class SharesShown(BaseModel):
    """Query of the page; empty texts are ignored."""

    vo: str = Field(default="", max_length=255, description="Empty: the only or first visible one.")
    first: JobId | Literal[""] = Field(default="", description="A job, whose order with `second` is shown.")
    second: JobId | Literal[""] = ""


@pools_router.get("/shares")
@allow(Role.USER, Role.VO_ADMIN, is_expensive=True)
@shows_filter
def show_shares(page: PageOf, query: Annotated[SharesShown, Query()]) -> HTMLResponse:
    """Show the shares of a VO, and which of two jobs comes first."""
    vos = visibility.pool_vos(page.caller, page.parts.live.current.vos)
    vo = visibility.vo_of(page.caller, query.vo or next(iter(vos), None))
    found = shares.list_shares(page.parts, page.caller, vo)
    order = None
    if query.first != "" and query.second != "":
        order = shares.compare_jobs(page.parts, page.caller, query.first, query.second)
    return page.render("shares/list.html", query=query, vos=vos, found=found, order=order)


def _list_conditions(asked: RequirementClass) -> Sequence[str]:
    """The requirements of a task queue other than its pool's."""
    conditions = job_conditions.list_conditions(JobDemand(asked=asked))
    return [
        f"{each.demand.keyword}: {each.wanted}"
        for each in conditions
        if isinstance(each, ClassCondition) and any(each.values)
    ]


router = APIRouter(route_class=PageRoute)

#: Queues that are listed; others have their own pages.
_QUEUES = 20

Counted = Mapping[tuple[str, ...], PilotCounts]


class PilotsShown(ListPage):
    """Query of the page; empty texts are ignored."""

    vo: str = ""
    site: str = ""
    status: str = ""
    hours: float = Field(default=24, gt=0, le=24 * 366, description="Leave out pilots that ended before.")
    after: str = Field(default="", max_length=255)


@router.get("/pilots")
@add_to_navigation("Pilots")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
@shows_filter
def list_pilots(page: PageOf, query: Annotated[PilotsShown, Query()]) -> HTMLResponse:
    """List the pilots of the caller's VOs, at the caller's sites."""
    visible = visibility.visible_pilots(
        page.caller, vo=query.vo or None, site=query.site or None, status=query.status or None
    )
    which = replace(visible, ended_since=page.parts.clock() - timedelta(hours=query.hours))
    with page.parts.replica.reading() as conn:
        counted = search.count_pilots(conn, ["queue", "status", "empty_reason"], which)
        failed = search.count_failed_jobs(conn, ["queue"], which)
        at_work = visibility.visible_processes(page.caller, processes.list_processes(conn))
        found = search.list_latest(conn, which, limit=query.fetch_limit, after=query.after or None)
    by_queue = sorted(_sums(counted, 0).items(), key=lambda each: (-each[1].count, each[0]))
    return page.render_list(
        "pilots",
        query,
        found,
        lambda pilot: pilot.stamp,
        vos=visibility.pool_vos(page.caller, page.parts.live.current.vos),
        statuses=list(PilotStatus),
        by_status=_sums(counted, 1),
        by_reason={reason: fared for reason, fared in _sums(counted, 2).items() if reason},
        by_queue=[(queue, fared, failed.get((queue,), 0)) for queue, fared in by_queue[:_QUEUES]],
        processes=at_work,
        now=page.parts.clock(),
        left=len(by_queue[_QUEUES:]),
    )


#: Jobs of a pilot that are listed.
_PILOT_JOBS = 100


@router.get("/pilots/{stamp}")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show_pilot(page: PageOf, stamp: Annotated[str, Path(min_length=1, max_length=255)]) -> HTMLResponse:
    """Show one pilot with its jobs and the end of its output; users those that ran only their own jobs."""
    with database.reading(page.parts.engine) as conn:
        pilot, ran = read_pilot(conn, page.caller, stamp)
        wrote = pilots.get_output(conn, stamp)
    may_see = {each.job_id for each in ran if _is_controlled(page.caller, each)}
    return page.render(
        "pilots/show.html", pilot=pilot, wrote=wrote, ran=ran, may_see=may_see, most=_PILOT_JOBS
    )


def read_pilot(conn: Connection, caller: Caller, stamp: str) -> tuple[Pilot, Sequence[PilotJob]]:
    """A pilot and its latest jobs; `PilotNotFound` unless it is the caller's, or ran only its jobs."""
    pilot = pilots.get_pilot(conn, stamp)
    ran = attempts.list_of_pilot(conn, stamp, limit=_PILOT_JOBS)
    is_all = 0 < len(ran) < _PILOT_JOBS and all(_is_controlled(caller, each) for each in ran)
    if not is_all:
        visibility.require_pilot(caller, pilot)
    return pilot, ran


def _is_controlled(caller: Caller, job: PilotJob) -> bool:
    return visibility.controls(caller, vo=job.vo, owner=job.owner)


def _sums(counted: Counted, column: int) -> dict[str, PilotCounts]:
    """Sum over all columns but one."""
    found: dict[str, PilotCounts] = {}
    for values, fared in counted.items():
        name = values[column]
        found[name] = found[name] + fared if name in found else fared
    return dict(sorted(found.items()))


class GridJobsShown(ListPage):
    """Query of the page."""

    site: str = Field(default="", max_length=255)
    local: Literal["", "unsubmitted", "active", "done", "error"] = Field(
        default="", description="Overall status of the local jobs."
    )
    after: int | None = Field(default=None, ge=0, lt=2**63)


@router.get("/managers")
@add_to_navigation("Job managers")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.GATEWAY)
@shows_filter
def list_managers(page: PageOf, query: Annotated[GridJobsShown, Query()]) -> HTMLResponse:
    """List the gateways with grid jobs that the person may count, and these jobs, newest first."""
    wanted = frozenset({query.site}) if query.site else None
    visible = [each.narrow(sites=wanted) for each in visibility.may_count(page.caller)]
    with page.parts.replica.reading() as conn:
        managers = grid_jobs.list_managers(conn, visible)
        found = grid_jobs.list_grid_jobs(
            conn,
            visible,
            limit=query.fetch_limit,
            after=query.after,
            status=LocalJobsStatus(query.local) if query.local else None,
        )
    sites = sorted({each.site for each in managers} & page.parts.live.current.sites)
    states = queries_sites.summarize_sites(page.parts, page.caller, sites) if sites else []
    return page.render_list(
        "managers",
        query,
        found,
        lambda job: job.job_id,
        managers=managers,
        throttles={each.site: each.throttles for each in states},
        may_name=partial(visibility.may_see_names_of, page.caller),
        may_control=partial(visibility.controls, page.caller),
    )
