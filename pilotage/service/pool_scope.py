"""Which pools and task queues a caller may see: those of its VOs."""

from pilotage.service.callers import Caller, Role
from requirements.values import fold
from taskqueue.errors import PoolNotFound
from taskqueue.pools import Pool
from taskqueue.task_queue_search import Filter


def vos(caller: Caller, named: str | None) -> frozenset[str] | None:
    """The VOs that are asked for and may be seen; None: all."""
    asked = None if named is None else frozenset({fold(named)})
    if caller.visible_vos is None or asked is None:
        return asked if caller.visible_vos is None else caller.visible_vos
    return asked & caller.visible_vos


def require(caller: Caller, pool: Pool) -> Pool:
    """The pool, if the caller may see it.

    Raises:
        PoolNotFound: It may not; the same as for a pool that does not exist.
    """
    if not caller.may_read(pool.vo):
        raise PoolNotFound(pool.pool_id)
    return pool


def task_queues(
    caller: Caller,
    *,
    vo: str | None = None,
    owner: str | None = None,
    owner_group: str | None = None,
    submit_pool: str | None = None,
) -> Filter:
    """The task queues of what was asked that the caller may see: users their own, others those of the VO."""
    is_user = caller.role is Role.USER
    others = is_user and owner not in (None, caller.user)
    return Filter(
        vos=frozenset() if others else vos(caller, vo),
        owner=caller.user if is_user else owner,
        owner_group=owner_group,
        submit_pool=submit_pool,
    )
