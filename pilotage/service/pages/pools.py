"""Pages of SubmitPools: their requirements, eligible queues and jobs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from pydantic import Field
from sqlalchemy import Connection

from cs_config.tree.address import QueueAddress
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.models import ListPage as Paging
from pilotage.service.pages.page import PageOf, PageRoute, add_to_navigation
from requirements import canonical
from taskqueue.db import database
from taskqueue.jobs.search import JobCount
from taskqueue.pools import listing
from taskqueue.pools.pools import Pool
from taskqueue.states import JobStatus

router = APIRouter(route_class=PageRoute)

#: Queues of a pool that are listed.
_QUEUES = 2000


class PoolsShown(Paging):
    """Query of the page."""

    vo: str = Field(default="", description="Empty: all visible VOs.")
    after: str = Field(default="", max_length=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool with its requirements and numbers."""

    pool: Pool
    asks: Sequence[str]
    queues: int
    jobs: Mapping[JobStatus, JobCount]


@router.get("/pools")
@add_to_navigation("Pools")
@allow(*EVERY_ROLE)
def list_pools(page: PageOf, query: Annotated[PoolsShown, Query()]) -> HTMLResponse:
    """List the pools of the caller's VOs, and those served by queues at its sites, by id."""
    which = visibility.visible_pools(page.caller, vo=query.vo or None)
    with database.reading(page.parts.engine) as conn:
        found, last = query.cut(listing.list_pools(conn, which, limit=query.enough, after=query.after))
        rows = _rows(conn, found)
    return page.render(
        "pools/list.html",
        rows=rows,
        vos=visibility.pool_vos(page.caller, page.parts.live.current.vos),
        query=query,
        next=last.pool_id if last else None,
        version=page.parts.live.current.version,
    )


@router.get("/pools/{pool_id}")
@allow(*EVERY_ROLE)
def show(page: PageOf, pool_id: Annotated[str, Path(max_length=64)]) -> HTMLResponse:
    """Show one pool with its queues by site, and its jobs by status."""
    with database.reading(page.parts.engine) as conn:
        pool = visibility.get(conn, page.caller, pool_id)
        eligible = listing.list_queues(conn, [pool_id]).get(pool_id, [])
        jobs = listing.count_jobs_by_status(conn, [pool_id]).get(pool_id, {})
    queues = visibility.queues(page.caller, pool, eligible)
    return page.render(
        "pools/show.html",
        pool=pool,
        asks=canonical.format_lines(pool.original),
        queues=len(eligible),
        sites=_group_by_site(queues[:_QUEUES]),
        left=max(0, len(queues) - _QUEUES),
        elsewhere=len(eligible) - len(queues),
        jobs=jobs,
        version=page.parts.live.current.version,
    )


def _rows(conn: Connection, found: Collection[Pool]) -> list[PoolRow]:
    ids = [pool.pool_id for pool in found]
    queues = listing.count_queues(conn, ids)
    jobs = listing.count_jobs_by_status(conn, ids)
    return [
        PoolRow(
            pool=pool,
            asks=canonical.format_lines(pool.original),
            queues=queues.get(pool.pool_id, 0),
            jobs=jobs.get(pool.pool_id, {}),
        )
        for pool in found
    ]


def _group_by_site(queues: Sequence[QueueAddress]) -> list[tuple[str, list[QueueAddress]]]:
    return [(site, list(there)) for site, there in groupby(queues, key=lambda queue: queue.site)]
