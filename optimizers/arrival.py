"""Jobs arrive in their SubmitPools and task queues, in the transaction that makes them Waiting."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from cs_config.queue_classes import queue_classes
from optimizers.candidate import Candidate, ResolvedPool
from optimizers.context import Context
from requirements import canonical
from taskqueue import mapping, pools, task_queues
from taskqueue.preparing import PreparingJob
from taskqueue.task_queues import WaitingEntry

#: A job with what the chain found out about it.
Arriving = tuple[PreparingJob, Candidate]


def touch_pools(conn: Connection, arriving: Sequence[Arriving], context: Context) -> frozenset[str]:
    """Make sure that the pools of the jobs exist, are resolved and stay: their rows are locked from here on.

    Returns:
        The pools that have an eligible queue, as they are stored: another process may know a newer
        configuration.
    """
    used = {
        candidate.pool.pool_id: (candidate.pool, candidate.vo) for _, candidate in arriving if candidate.pool
    }
    # In the order of their ids, so that two batches never wait for each other crosswise.
    for pool_id in sorted(used):
        _touch(conn, *used[pool_id], context)
    return mapping.with_queues(conn, used)


def _touch(conn: Connection, pool: ResolvedPool, vo: str, context: Context) -> None:
    unresolved = pools.touch(
        conn,
        pool_id=pool.pool_id,
        vo=vo,
        requirements_json=canonical.canonical(pool.requirements, vo).decode(),
        original_json=canonical.to_json(pool.requirements),
        now=context.now,
    )
    if not unresolved:
        return
    version = context.config.version
    mapping.sync_queue_classes(
        conn, vo=vo, config_version=version, classes=queue_classes(context.config, vo), now=context.now
    )
    mapping.resolve(
        conn,
        pool_id=pool.pool_id,
        config_version=version,
        queue_class_digests=frozenset(each.digest for each in pool.queue_classes),
        now=context.now,
    )


def enqueue(conn: Connection, arriving: Sequence[Arriving], *, now: datetime) -> None:
    """Put jobs that are Waiting into their task queues."""
    entries = [
        WaitingEntry(
            job_id=job.job_id,
            requirement_class=candidate.requirement_class,
            owner=job.owner,
            owner_group=job.owner_group,
            priority=job.priority,
        )
        for job, candidate in arriving
        if candidate.requirement_class is not None
    ]
    if entries:
        task_queues.enqueue(conn, entries, now=now)
