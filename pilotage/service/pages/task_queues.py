"""Task queues: the waiting jobs of one owner group with equal requirements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import Field

from cs_config.configuration import Configuration
from cs_config.groups import DEFAULT_SHARE
from matcher import parts as demands
from matcher.parts import Condition, Demand
from pilotage.service import pool_scope
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.models.paging import Page as Paging
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database, task_queue_search
from taskqueue.classes import RequirementClass
from taskqueue.task_queue_search import Occupied

router = APIRouter(route_class=PageRoute)


class TaskQueuesShown(Paging):
    """Which task queues the page lists; empty texts ask nothing."""

    vo: str = ""
    group: str = ""
    owner: str = ""
    pool: str = Field(default="", max_length=64)
    after: int = Field(default=0, ge=0, lt=2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task queue with what it asks besides its pool."""

    found: Occupied
    share: float  #: of its group
    asks: Sequence[str]


@router.get("/task-queues")
@allow(Role.USER, Role.VO_ADMIN, Role.DIRECTOR)
def list_task_queues(page: PageOf, query: Annotated[TaskQueuesShown, Query()]) -> HTMLResponse:
    """The task queues that have jobs: users see their own, others those of their VOs."""
    which = pool_scope.task_queues(
        page.caller,
        vo=query.vo or None,
        owner=query.owner or None,
        owner_group=query.group or None,
        submit_pool=query.pool or None,
    )
    with database.reading(page.parts.engine) as conn:
        found = task_queue_search.find(conn, which, limit=query.enough, after=query.after)
    shown, last = query.cut(found)
    config = page.parts.live.current
    return page.render(
        "task_queues/list.html",
        rows=[_row(config, each) for each in shown],
        vos=pool_scope.vos(page.caller, page.parts.live.current.vos),
        query=query,
        next=last.task_queue.task_queue_id if last else None,
    )


def _row(config: Configuration, found: Occupied) -> Row:
    group = config.registry.groups.get(found.task_queue.owner_group)
    return Row(
        found=found,
        share=group.job_share if group else DEFAULT_SHARE,
        asks=_asks(found.task_queue.requirement_class),
    )


def _asks(asked: RequirementClass) -> list[str]:
    conditions = [each for each in demands.parts(Demand(asked=asked)) if isinstance(each, Condition)]
    return [
        f"{each.kind.requirement}: {each.kind.wanted(each.isolated)}"
        for each in conditions
        if any(each.asked)
    ]
