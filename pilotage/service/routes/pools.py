"""SubmitPools with their queues and jobs."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection

from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller
from pilotage.service.models.pools import PoolAnswer, PoolPage, PoolQuery
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf
from requirements import canonical
from requirements.record.record import Record
from requirements.values import Value
from taskqueue.db import database
from taskqueue.pools import listing
from taskqueue.pools.pools import Pool

router = APIRouter(prefix="/pools", tags=["pools"], route_class=ApiRoute)


@router.get("")
@allow(*EVERY_ROLE)
def list_pools(parts: PartsOf, caller: CallerOf, query: Annotated[PoolQuery, Query()]) -> PoolPage:
    """List the pools of the caller's VOs, and those served by queues at its sites."""
    with database.reading(parts.engine) as conn:
        which = visibility.visible_pools(caller, vo=query.vo)
        found = listing.list_pools(conn, which, limit=query.enough, after=query.after)
        page, last = query.cut(found)
        answers = _answers(conn, caller, page)
    return PoolPage(pools=answers, next=last.pool_id if last else None)


@router.get("/{pool_id}")
@allow(*EVERY_ROLE)
def show(parts: PartsOf, caller: CallerOf, pool_id: Annotated[str, Path(max_length=64)]) -> PoolAnswer:
    """Show one pool."""
    with database.reading(parts.engine) as conn:
        return _answers(conn, caller, [visibility.get(conn, caller, pool_id)])[0]


def _answers(conn: Connection, caller: Caller, found: Sequence[Pool]) -> list[PoolAnswer]:
    ids = [pool.pool_id for pool in found]
    queues = listing.list_queues(conn, ids)
    counts = listing.count_jobs_by_status(conn, ids)
    return [
        PoolAnswer(
            pool_id=pool.pool_id,
            vo=pool.vo,
            requirements=_requirements(pool),
            eligible_queues=len(queues.get(pool.pool_id, ())),
            queues=[str(each) for each in visibility.queues(caller, pool, queues.get(pool.pool_id, ()))],
            jobs={status: count.jobs for status, count in counts.get(pool.pool_id, {}).items()},
            more_jobs=[status for status, count in counts.get(pool.pool_id, {}).items() if count.more],
            created_at=pool.created_at,
            last_used_at=pool.last_used_at,
            refreshed_at=pool.refreshed_at,
            config_version=pool.config_version,
        )
        for pool in found
    ]


def _requirements(pool: Pool) -> dict[str, Value] | str:
    asked = canonical.from_json(pool.original)
    return dict(asked.values) if isinstance(asked, Record) else asked.text
