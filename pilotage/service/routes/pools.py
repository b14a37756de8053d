"""SubmitPools with their queues and jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from cs_config.tree.address import QueueAddress
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller
from pilotage.service.models import ListPage, StrictInput
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf
from requirements import canonical
from requirements.record import Record
from requirements.states import JobStatus
from requirements.values import Value
from taskqueue.db import database
from taskqueue.jobs.search import JobCount
from taskqueue.pools import listing
from taskqueue.pools.pools import Pool

#: Characters of the requirements and queues of one page, and of the address of a queue.
_CHARACTERS: Final = 2_000_000
_QUEUE: Final = 40

router = APIRouter(prefix="/pools", tags=["pools"], route_class=ApiRoute)


class PoolAnswer(BaseModel):
    """Requirements of a VO with the queues that are eligible for them."""

    pool_id: str = Field(description="SHA-256 of the canonical form.")
    vo: str
    requirements: dict[str, Value] | str = Field(description="As first submitted: a record or an expression.")
    eligible_queues: int
    queues: list[str] = Field(
        description="`Site/CE/Queue` of each; of a VO that the token is not for, only those at its sites."
    )
    jobs: dict[str, int] = Field(description="Numbers of jobs by status.")
    more_jobs: list[str] = Field(description="Statuses whose count in `jobs` is only a lower bound.")
    created_at: datetime
    last_used_at: datetime
    refreshed_at: datetime | None = Field(
        description="Time at which the queues were computed; null: not yet."
    )
    config_version: int = Field(description="The configuration that they were computed from.")


class PoolPage(BaseModel):
    """Pools by id."""

    pools: list[PoolAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class PoolQuery(StrictInput, ListPage):
    """Filter of pools."""

    vo: str | None = None
    after: str = Field(default="", max_length=64, description="`next` of the page before.")


@router.get("")
@allow(*EVERY_ROLE)
def list_pools(parts: PartsOf, caller: CallerOf, query: Annotated[PoolQuery, Query()]) -> PoolPage:
    """List the pools of the caller's VOs, and those served by queues at its sites."""
    with parts.replica.reading() as conn:
        which = visibility.visible_pools(caller, vo=query.vo)
        found = listing.list_pools(conn, which, limit=query.fetch_limit, after=query.after)
        page, last = query.cut(found)
        shown = _cut_long(conn, page)
        answers = _answers(conn, caller, shown)
    if len(shown) < len(page):
        last = shown[-1]
    return PoolPage(pools=answers, next=last.pool_id if last else None)


@router.get("/{pool_id}")
@allow(*EVERY_ROLE)
def show(parts: PartsOf, caller: CallerOf, pool_id: Annotated[str, Path(max_length=64)]) -> PoolAnswer:
    """Show one pool."""
    with database.reading(parts.engine) as conn:
        return _answers(conn, caller, [visibility.get_visible_pool(conn, caller, pool_id)])[0]


def _cut_long(conn: Connection, page: Sequence[Pool]) -> Sequence[Pool]:
    """The first pools of a page, as long as their requirements and queues have not too many characters."""
    queues = listing.count_queues(conn, [pool.pool_id for pool in page])
    sizes = (len(pool.original) + _QUEUE * queues.get(pool.pool_id, 0) for pool in page)
    fitting = sum(size <= _CHARACTERS for size in accumulate(sizes))
    return page[: max(fitting, 1)]


def _answers(conn: Connection, caller: Caller, found: Sequence[Pool]) -> list[PoolAnswer]:
    ids = [pool.pool_id for pool in found]
    queues = listing.list_queues(conn, ids)
    counts = listing.count_jobs_by_status(conn, ids)
    return [
        _answer(caller, pool, queues.get(pool.pool_id, ()), counts.get(pool.pool_id, {})) for pool in found
    ]


def _answer(
    caller: Caller, pool: Pool, queues: Sequence[QueueAddress], counts: Mapping[JobStatus, JobCount]
) -> PoolAnswer:
    asked = canonical.from_json(pool.original)
    return PoolAnswer(
        pool_id=pool.pool_id,
        vo=pool.vo,
        requirements=dict(asked.values) if isinstance(asked, Record) else asked.text,
        eligible_queues=len(queues),
        queues=[str(each) for each in visibility.visible_queues(caller, pool, queues)],
        jobs={status: count.jobs for status, count in counts.items()},
        more_jobs=[status for status, count in counts.items() if count.more],
        created_at=pool.created_at,
        last_used_at=pool.last_used_at,
        refreshed_at=pool.refreshed_at,
        config_version=pool.config_version,
    )
