"""Which process does an agent's work now: one row an agent, with an expiry and a fencing number.

A process that was asleep while another took over does not know it. Its work is safe all the same:
every transaction of it begins with `still_held`, which keeps the lease in place until the transaction ends.
"""

from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, case, or_, select, update
from sqlalchemy.sql.dml import Insert

from taskqueue.tables import agent_leases as table
from taskqueue.upserts import Twins, Upsert


def _acquire(insert: Upsert) -> Insert:
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


ACQUIRE = Twins(table, _acquire)

_IS_OURS = and_(table.c.name == bindparam("the_name"), table.c.fence == bindparam("the_fence"))

#: FOR SHARE: who wants to take over waits until this transaction has ended.
STILL_HELD = select(table.c.fence).where(_IS_OURS).with_for_update(read=True)

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
    fence: int | None = conn.execute(ACQUIRE.of(conn), row).scalar_one_or_none()
    return fence


def still_held(conn: Connection, *, name: str, fence: int) -> bool:
    """Whether nobody has taken over; it stays so until the transaction ends."""
    return conn.execute(STILL_HELD, {"the_name": name, "the_fence": fence}).first() is not None


def finish_cycle(conn: Connection, *, name: str, fence: int, now: datetime) -> None:
    """Note that a cycle of the agent was completed."""
    conn.execute(FINISH_CYCLE, {"the_name": name, "the_fence": fence, "now": now})


def release(conn: Connection, *, name: str, fence: int, now: datetime) -> None:
    """Give the lease back, so that another process need not wait for its end."""
    conn.execute(RELEASE, {"the_name": name, "the_fence": fence, "now": now})
