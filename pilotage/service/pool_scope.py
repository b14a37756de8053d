"""Which pools and task queues a caller may see: of its VOs, and what its sites' queues are asked for."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from cs_config.address import QueueAddress
from pilotage.service import told
from pilotage.service.callers import Caller
from requirements.values import fold
from taskqueue import pool_search, pools, task_queue_search, whose
from taskqueue.errors import PoolNotFound
from taskqueue.pools import Pool


def visible(caller: Caller, *, vo: str | None = None) -> pool_search.Filter:
    """The pools of a VO (None: of any) that the caller may see."""
    asked = None if vo is None else frozenset({fold(vo)})
    return pool_search.Filter(vos=caller.visible_vos, served_at=caller.own_sites, among=asked)


def get(conn: Connection, caller: Caller, pool_id: str) -> Pool:
    """The pool, if the caller may see it.

    Raises:
        PoolNotFound: It may not; the same as for a pool that does not exist.
    """
    pool = pools.get(conn, pool_id)
    if not caller.may_read(pool.vo) and not pool_search.has_pool(conn, visible(caller), pool_id):
        raise PoolNotFound(pool_id)
    return pool


def queues(caller: Caller, pool: Pool, eligible: Sequence[QueueAddress]) -> Sequence[QueueAddress]:
    """Those of its queues that the caller is told: of other VOs' pools only those at his sites."""
    if caller.may_read(pool.vo):
        return eligible
    return [queue for queue in eligible if caller.looks_after(queue.site)]


def vos(caller: Caller, every: Collection[str]) -> list[str]:
    """The VOs that lists of pools, pilots and the like may be narrowed to, of all that there are."""
    is_every = caller.own_sites or caller.visible_vos is None
    return sorted(every if is_every else caller.visible_vos or ())


def task_queues(
    caller: Caller,
    *,
    vo: str | None = None,
    owner: str | None = None,
    owner_group: str | None = None,
    submit_pool: str | None = None,
) -> task_queue_search.Filter:
    """The task queues of what was asked that the caller may see: those of jobs that are named to it."""
    vos = None if vo is None else frozenset({fold(vo)})
    every, any_of = whose.split([each.of(vos=vos, owner=owner) for each in told.named(caller)])
    return task_queue_search.Filter(
        vos=every.vos,
        owner=every.owner,
        owner_group=owner_group,
        submit_pool=submit_pool,
        any_of=any_of,
    )
