"""Put jobs into their SubmitPools, in the transaction that makes them Waiting."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from cs_config.classes.queue_classes import queue_classes as configured_classes
from optimizers.chain.chain import ChainContext, JobContext
from requirements import canonical
from taskqueue.jobs import unmatchable
from taskqueue.pools import pools, queue_class_store
from taskqueue.pools.pools import NewPool


def find_excess(conn: Connection, candidates: Iterable[JobContext], context: ChainContext) -> frozenset[str]:
    """The pools that may not be created, as their VO has as many as it may; before `touch_pools`."""
    wanted: defaultdict[str, dict[str, None]] = defaultdict(dict)  # in the order of the jobs
    for each in candidates:
        if each.pool:
            wanted[each.vo][each.pool.pool_id] = None
    by_vo = {vo: list(pool_ids) for vo, pool_ids in wanted.items()}
    return pools.find_excess(conn, by_vo, lambda vo: context.operations(vo).limits.pools)


def touch_pools(conn: Connection, candidates: Iterable[JobContext], context: ChainContext) -> frozenset[str]:
    """Create missing pools and lock the rows of all pools, so that they cannot be removed.

    A new pool is mapped to its queues, unless the VO's queue classes are of another version of the
    configuration: then the pool agent does it immediately. Returns the pools that have an eligible queue,
    according to the database: another process may have a newer configuration.
    """
    used = {each.pool.pool_id: (each.pool, each.vo) for each in candidates if each.pool}
    wanted = (
        NewPool(
            pool_id=pool.pool_id,
            vo=vo,
            requirements=pool.canonical,
            original=canonical.to_json(pool.requirements),
        )
        for pool, vo in used.values()
    )
    digests: defaultdict[str, dict[str, Mapping[str, bool]]] = defaultdict(dict)
    for pool_id in pools.touch_pools(conn, wanted, now=context.now):
        pool, vo = used[pool_id]
        found = context.find_queue_classes(pool, vo)
        digests[vo][pool_id] = {each.queue_class.digest: each.undecided for each in found}
    config = context.config
    of: dict[str, Any] = {
        "config_version": config.version,
        "expiries": config.expiries,
        "now": context.now,
    }
    for vo in sorted(digests):
        if queue_class_store.read_version(conn, vo) is None:
            queue_class_store.store_classes(conn, vo=vo, classes=configured_classes(config, vo), **of)
        pools.store_mappings(conn, vo=vo, digests=digests[vo], **of)
    stored = unmatchable.read_has_queue(conn, used)
    return frozenset(
        pool_id
        for pool_id, (pool, vo) in used.items()
        if (stored[pool_id] if pool_id in stored else context.find_queue_classes(pool, vo))
    )


def lock_resolved_pools(
    conn: Connection, candidates: Iterable[JobContext], context: ChainContext
) -> Mapping[str, bool]:
    """Lock those pools that exist with the mapping of this version; whether each has an eligible queue.

    Waits for nobody: a pool that is new, that another transaction is changing, or whose VO has queue classes
    of another version of the configuration is left out, and its jobs to the optimizers. The locks are shared
    between submissions. As the VO's version is locked as well, a refresh of its pools comes before, and is
    seen here, or after the commit, and corrects these jobs like all that wait: none is missed.
    """
    pool_ids: defaultdict[str, set[str]] = defaultdict(set)
    for each in candidates:
        if each.pool:
            pool_ids[each.vo].add(each.pool.pool_id)
    wanted = {pool_id for of_vo in pool_ids.values() for pool_id in of_vo}
    locked = pools.lock_resolved(conn, wanted, now=context.now)
    version = (context.config.version, context.config.expiries)
    current = {
        vo for vo in sorted(pool_ids) if queue_class_store.lock_version(conn, vo, wait=False) == version
    }
    usable = [pool_id for vo in current for pool_id in pool_ids[vo] & locked]
    return unmatchable.read_has_queue(conn, usable)
