"""The numbers that operators watch."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, exists, func, select

from taskqueue.tables import agent_leases, jobs, submit_pools
from taskqueue.views import pool_queues

JOBS = select(jobs.c.vo, jobs.c.status, func.count()).group_by(jobs.c.vo, jobs.c.status)

_has_queue = exists().where(pool_queues.c.pool_id == submit_pools.c.pool_id)
WITHOUT_QUEUES = (
    select(submit_pools.c.vo, func.count())
    .where(submit_pools.c.refreshed_at.is_not(None), ~_has_queue)
    .group_by(submit_pools.c.vo)
)

CYCLES = select(agent_leases.c.name, agent_leases.c.last_cycle_at).where(
    agent_leases.c.last_cycle_at.is_not(None)
)


def jobs_by_status(conn: Connection) -> list[tuple[str, str, int]]:
    """VO, status and number of jobs. It reads an index from end to end: not for every second."""
    return [(vo, status, count) for vo, status, count in conn.execute(JOBS)]


def pools_without_queues(conn: Connection) -> Mapping[str, int]:
    """By VO the number of pools that no queue is eligible for."""
    return {vo: count for vo, count in conn.execute(WITHOUT_QUEUES)}  # noqa: C416  (rows are no pairs for mypy)


def last_cycles(conn: Connection) -> Mapping[str, datetime]:
    """By agent the end of its last cycle, in any process."""
    return {name: at for name, at in conn.execute(CYCLES)}  # noqa: C416
