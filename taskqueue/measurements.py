"""The numbers that operators watch, beside those of jobs and pilots."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, func, select

from taskqueue import stuck_jobs
from taskqueue.tables import agent_leases, pool_mappings

WITHOUT_QUEUE = stuck_jobs.WITHOUT_QUEUE.with_only_columns(pool_mappings.c.vo, func.count()).group_by(
    pool_mappings.c.vo
)
CYCLES = select(agent_leases.c.name, agent_leases.c.last_cycle_at).where(
    agent_leases.c.last_cycle_at.is_not(None)
)


def pools_without_queue(conn: Connection) -> Mapping[str, int]:
    """By VO the number of pools that no queue is eligible for."""
    return {vo: count for vo, count in conn.execute(WITHOUT_QUEUE)}  # noqa: C416  (rows are no pairs for mypy)


def last_cycles(conn: Connection) -> Mapping[str, datetime]:
    """By agent the end of its last cycle, in any process."""
    return {name: at for name, at in conn.execute(CYCLES)}  # noqa: C416
