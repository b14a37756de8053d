"""Leader leases of the agents: one row per agent with expiry, fencing number and time of the last cycle.

A process that was suspended while another took over does not notice it. Its work is safe nevertheless: each
transaction begins with `is_held`, which keeps the lease row locked until the transaction ends.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, case, or_, select, update
from sqlalchemy.sql.dml import Insert

from taskqueue.db.sql import DialectInsert, Upsert
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

#: FOR SHARE: another process can take over only after this transaction.
IS_HELD = select(table.c.fence).where(_IS_OURS).with_for_update(read=True)

FINISH_CYCLE = update(table).where(_IS_OURS).values(last_cycle_at=bindparam("now"))


def acquire(conn: Connection, *, name: str, holder: str, now: datetime, ttl: timedelta) -> int | None:
    """Get or extend the lease of an agent; the fencing number, or None if another process holds the lease.

    The holder's name is unique to the process and never used again. `ttl` is the time until expiry.
    """
    row = {"name": name, "holder": holder, "fence": 1, "expires_at": now + ttl, "now": now}
    fence: int | None = conn.execute(ACQUIRE.to_statement(conn), row).scalar_one_or_none()
    return fence


def is_held(conn: Connection, *, name: str, fence: int) -> bool:
    """Whether the lease is still held; it stays so until the transaction ends."""
    return conn.execute(IS_HELD, {"the_name": name, "the_fence": fence}).first() is not None


def finish_cycle(conn: Connection, *, name: str, fence: int, now: datetime) -> None:
    """Record the end of a cycle."""
    conn.execute(FINISH_CYCLE, {"the_name": name, "the_fence": fence, "now": now})


LAST_CYCLES = select(table.c.name, table.c.last_cycle_at)


def list_last_cycles(conn: Connection) -> Mapping[str, datetime | None]:
    """Time of the latest completed cycle of every agent that ever held its lease."""
    return {row.name: row.last_cycle_at for row in conn.execute(LAST_CYCLES)}
