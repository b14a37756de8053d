"""Put jobs into their SubmitPools and task queues, in the transaction that makes them Waiting."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from cs_config.classes.queue_classes import queue_classes as configured_classes
from optimizers.chain.chain import ChainContext, JobContext
from requirements import canonical
from taskqueue.jobs import unmatchable
from taskqueue.jobs.optimizer_queue import PreparingJob
from taskqueue.pools import mapping, pools, queue_class_store
from taskqueue.pools.pools import NewPool
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueueKey

#: A job with the findings of the chain.
ArrivingJobs = tuple[PreparingJob, JobContext]


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
        digests[vo][pool_id] = pool.digests
    config = context.config
    of: dict[str, Any] = {
        "config_version": config.version,
        "expiries": config.expiries,
        "now": context.now,
    }
    for vo in sorted(digests):
        if queue_class_store.read_version(conn, vo) is None:
            queue_class_store.store_classes(conn, vo=vo, classes=configured_classes(config, vo), **of)
        mapping.store_mappings(conn, vo=vo, digests=digests[vo], **of)
    stored = unmatchable.read_has_queue(conn, used)
    return frozenset(
        pool_id for pool_id, (pool, _) in used.items() if stored.get(pool_id, bool(pool.queue_classes))
    )


def lock_task_queues(
    conn: Connection, arriving: Sequence[ArrivingJobs], *, now: datetime
) -> Mapping[int, int]:
    """Create or find the task queues of jobs that become Waiting, lock them, and return their ids by job."""
    by_job: dict[int, tuple[str, str, str]] = {}
    wanted: dict[tuple[str, str, str], TaskQueueKey] = {}
    for job, candidate in arriving:
        if (asked := candidate.requirement_class) is not None:
            key = asked.digest, job.owner_group, job.owner
            by_job[job.job_id] = key
            wanted.setdefault(key, (asked, job.owner_group, job.owner))
    if not wanted:
        return {}
    ids = task_queues.hold_task_queues(conn, wanted.values(), now=now)
    by_key = {key: ids[place] for key, place in wanted.items()}
    return {job_id: by_key[key] for job_id, key in by_job.items()}


def enqueue(conn: Connection, arriving: Sequence[ArrivingJobs], places: Mapping[int, int]) -> None:
    """Put Waiting jobs into the task queues returned by `lock_task_queues`."""
    entries = [(job.job_id, places[job.job_id], job.priority) for job, _ in arriving if job.job_id in places]
    if entries:
        task_queues.add_waiting(conn, entries)
