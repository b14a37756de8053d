"""When agents came through their cycles."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from taskqueue.tables import agent_leases

LAST = select(agent_leases.c.last_cycle_at).where(agent_leases.c.name == bindparam("name"))

LATEST = select(agent_leases.c.name, agent_leases.c.last_cycle_at)


def last(conn: Connection, agent: str) -> datetime | None:
    """When the latest cycle that came through to its end began; None: none ever did."""
    found: datetime | None = conn.execute(LAST, {"name": agent}).scalar_one_or_none()
    return found


def latest(conn: Connection) -> Mapping[str, datetime | None]:
    """What `last` says of every agent that ever took its turn."""
    return {row.name: row.last_cycle_at for row in conn.execute(LATEST)}
