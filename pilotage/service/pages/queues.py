"""Pages of batch queues (parameters for a VO, excluded and served jobs, pilots) and of task queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field

from cs_config.options.groups import DEFAULT_SHARE
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions as demands
from matcher.explain.job_conditions import ClassCondition, JobDemand
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow, allowed_roles
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.configuring import blames, queue_switch
from pilotage.service.models.explain import QueueExplanation
from pilotage.service.models.paging import ListPage as Paging
from pilotage.service.pages import pilots as pilot_pages
from pilotage.service.pages.page import PageContext, PageOf, PageRoute
from pilotage.service.queries import explanations
from pilotage.service.routing import QueueOf
from requirements import canonical
from requirements.values import fold
from taskqueue.db import database
from taskqueue.jobs.search import JobCount
from taskqueue.pilots import search
from taskqueue.pilots.search import PilotCounts
from taskqueue.pools import listing, pools
from taskqueue.states import JobStatus
from taskqueue.task_queues import listing as task_queues_listing
from taskqueue.task_queues.listing import OccupiedTaskQueue
from taskqueue.task_queues.requirement_class import RequirementClass

router = APIRouter(route_class=PageRoute)

#: Pools of a queue that are listed.
_POOLS = 20
#: Older pilots are not counted, as on the page of pilots.
_RECENT = timedelta(days=1)

_Text = Annotated[str, Form(max_length=1000)]


@router.get("/sites/{site}/{ce}/{queue}")
@allow(*EVERY_ROLE)
def show_queue(
    page: PageOf, address: QueueOf, vo: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """Show a queue with its parameters for a VO."""
    config, caller = page.parts.live.current, page.caller
    explained = explanations.explain_queue(page.parts, caller, config.require(address))
    pilots = _pilots(page, address) if caller.role in allowed_roles(pilot_pages.list_pilots) else None
    if page.is_fragment:
        return page.render("sites/queue_live.html", address=address, explained=explained, pilots=pilots)
    return _whole(page, address, vo, explained, pilots)


def _whole(
    page: PageContext,
    address: QueueAddress,
    vo: str,
    explained: QueueExplanation,
    pilots: Mapping[str, PilotCounts] | None,
) -> HTMLResponse:
    config, caller = page.parts.live.current, page.caller
    vos = visibility.site_vos(caller, config, address.site)
    selected = fold(vo) or _default_vo(config, caller, address, vos)
    values = (
        blames.blame_values(page.parts, caller, config, path=str(address), vo=selected) if selected else ()
    )
    served, asks, jobs = _pools(page, address, vos)
    return page.render(
        "sites/queue.html",
        address=address,
        vos=vos,
        vo=selected,
        parameters=[each for each in values if each.line.places],
        expired=config.expired(address, selected).values(),
        usable=config.usable(address, selected) if selected else None,
        enabled=config.enabled(address, selected),
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
    """Disable the queue for new jobs."""
    queue_switch.drain(page.parts, page.caller, address, message=message)
    return RedirectResponse(f"/sites/{address}", 303)


@router.post("/sites/{site}/{ce}/{queue}/resume")
@allow(Role.SITE_ADMIN)
def resume(page: PageOf, address: QueueOf, message: _Text = "") -> Response:
    """Enable the queue again."""
    queue_switch.resume(page.parts, page.caller, address, message=message)
    return RedirectResponse(f"/sites/{address}", 303)


def _default_vo(config: Configuration, caller: Caller, address: QueueAddress, vos: Sequence[str]) -> str:
    """The caller's VO, else the first that may use the queue."""
    if caller.vo in vos:
        return caller.vo or ""
    return next((vo for vo in vos if config.usable(address, vo)), vos[0] if vos else "")


def _pools(
    page: PageOf, address: QueueAddress, vos: Sequence[str]
) -> tuple[
    Sequence[listing.MappedPool], Mapping[str, Sequence[str]], Mapping[str, Mapping[JobStatus, JobCount]]
]:
    """The pools for which the queue is eligible, with the requirements and jobs of the first."""
    with database.reading(page.parts.engine) as conn:
        served = listing.list_mapped_pools(conn, vos, [address])[address]
        ids = [each.pool_id for each in served[:_POOLS]]
        originals = pools.read_originals(conn, ids)
        jobs = listing.count_jobs_by_status(conn, ids)
    return served, {pool_id: canonical.format_lines(each) for pool_id, each in originals.items()}, jobs


def _pilots(page: PageOf, address: QueueAddress) -> Mapping[str, PilotCounts]:
    which = visibility.visible_pilots(page.caller, vo=None, site=address.site, status=None)
    with database.reading(page.parts.engine) as conn:
        since = page.parts.clock() - _RECENT
        counted = search.count_pilots(conn, ["queue", "status"], which, ended_since=since)
    return {status: fared for (queue, status), fared in counted.items() if queue == str(address)}


task_queue_router = APIRouter(route_class=PageRoute)


class TaskQueuesShown(Paging):
    """Query of the page; empty texts are ignored."""

    vo: str = ""
    group: str = ""
    owner: str = ""
    pool: str = Field(default="", max_length=64)
    after: int = Field(default=0, ge=0, lt=2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueRow:
    """A task queue with its requirements other than the pool's."""

    found: OccupiedTaskQueue
    share: float  #: of its group
    asks: Sequence[str]


@task_queue_router.get("/task-queues")
@allow(Role.USER, Role.VO_ADMIN, Role.DIRECTOR)
def list_task_queues(page: PageOf, query: Annotated[TaskQueuesShown, Query()]) -> HTMLResponse:
    """List the task queues with jobs: users their own, others those of their VOs."""
    which = visibility.task_queues(
        page.caller,
        vo=query.vo or None,
        owner=query.owner or None,
        owner_group=query.group or None,
        submit_pool=query.pool or None,
    )
    with database.reading(page.parts.engine) as conn:
        found = task_queues_listing.list_task_queues(conn, which, limit=query.enough, after=query.after)
    shown, last = query.cut(found)
    config = page.parts.live.current
    return page.render(
        "task_queues/list.html",
        rows=[_row(config, each) for each in shown],
        vos=visibility.pool_vos(page.caller, page.parts.live.current.vos),
        query=query,
        next=last.task_queue.task_queue_id if last else None,
    )


def _row(config: Configuration, found: OccupiedTaskQueue) -> TaskQueueRow:
    group = config.registry.groups.get(found.task_queue.owner_group)
    return TaskQueueRow(
        found=found,
        share=group.job_share if group else DEFAULT_SHARE,
        asks=_asks(found.task_queue.requirement_class),
    )


def _asks(asked: RequirementClass) -> list[str]:
    conditions = [
        each for each in demands.list_conditions(JobDemand(asked=asked)) if isinstance(each, ClassCondition)
    ]
    return [
        f"{each.kind.requirement}: {each.kind.wanted(each.isolated)}"
        for each in conditions
        if any(each.asked)
    ]
