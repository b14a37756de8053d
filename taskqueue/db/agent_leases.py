"""Leader leases of the agents: one row per agent with expiry, fencing number and time of the last cycle.

A process that was suspended while another took over does not notice it. Its work is safe all the same:
each transaction begins with `is_held`, which keeps the lease row locked until the transaction ends.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, case, or_, select, update
from sqlalchemy.sql.dml import Insert

from taskqueue.db.sql import DialectInsert, Upsert
from taskqueue.schema.tables import agent_leases
from taskqueue.schema.tables import agent_leases as table


def _acquire(insert: DialectInsert) -> Insert:
    is_ours = table.c.holder == insert.excluded.holder
    return insert.on_conflict_do_update(
        index_elements=["name"],
        set_={
            "holder": insert.excluded.holder,
            "expires_at": insert.excluded.expires_at,
            "fence": case((is_ours, table.c.fence), else_=table.c.fence + 1),
        },
        where=or_(is_ours, table.c.expires_at <= bindparam("now", type_=table.c.expires_at.type)),
    ).returning(table.c.fence)


ACQUIRE = Upsert(table, _acquire)

_IS_OURS = and_(table.c.name == bindparam("the_name"), table.c.fence == bindparam("the_fence"))

#: FOR SHARE: who wants to take over waits until this transaction has ended.
IS_HELD = select(table.c.fence).where(_IS_OURS).with_for_update(read=True)

FINISH_CYCLE = update(table).where(_IS_OURS).values(last_cycle_at=bindparam("now"))

RELEASE = update(table).where(_IS_OURS).values(expires_at=bindparam("now"))


def acquire(conn: Connection, *, name: str, holder: str, now: datetime, ttl: timedelta) -> int | None:
    """Get or prolong the lease of an agent.

    Args:
        conn: In a writing transaction.
        name: The agent.
        holder: This process, by a name that no other process ever has.
        now: The time.
        ttl: How long the lease is good without being prolonged.

    Returns:
        The fencing number; None: another process holds the lease.
    """
    row = {"name": name, "holder": holder, "fence": 1, "expires_at": now + ttl, "now": now}
    fence: int | None = conn.execute(ACQUIRE.to_statement(conn), row).scalar_one_or_none()
    return fence


def is_held(conn: Connection, *, name: str, fence: int) -> bool:
    """Whether nobody has taken over; it stays so until the transaction ends."""
    return conn.execute(IS_HELD, {"the_name": name, "the_fence": fence}).first() is not None


def finish_cycle(conn: Connection, *, name: str, fence: int, now: datetime) -> None:
    """Note that a cycle of the agent was completed."""
    conn.execute(FINISH_CYCLE, {"the_name": name, "the_fence": fence, "now": now})


def release(conn: Connection, *, name: str, fence: int, now: datetime) -> None:
    """Give the lease back, so that another process need not wait for its end."""
    conn.execute(RELEASE, {"the_name": name, "the_fence": fence, "now": now})


LAST_CYCLE = select(agent_leases.c.last_cycle_at).where(agent_leases.c.name == bindparam("name"))

LAST_CYCLES = select(agent_leases.c.name, agent_leases.c.last_cycle_at)


def read_last_cycle(conn: Connection, agent: str) -> datetime | None:
    """When the latest cycle that came through to its end began; None: none ever did."""
    found: datetime | None = conn.execute(LAST_CYCLE, {"name": agent}).scalar_one_or_none()
    return found


def list_last_cycles(conn: Connection) -> Mapping[str, datetime | None]:
    """What `last` says of every agent that ever took its turn."""
    return {row.name: row.last_cycle_at for row in conn.execute(LAST_CYCLES)}
